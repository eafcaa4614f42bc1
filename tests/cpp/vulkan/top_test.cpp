#include <cstdlib>

#include "reference/top_rows.h"
#include "vulkan/vulkan_backend.h"

namespace pumice {
namespace {

TEST(VulkanTop, LogitsThatAreNoNumbersAreFound) {
  const char* index = std::getenv("PUMICE_TEST_VULKAN");
  cases::expect_not_finite_found(*vulkan::make_backend(index != nullptr ? std::strtoul(index, nullptr, 10) : 0));
}

}  // namespace
}  // namespace pumice
