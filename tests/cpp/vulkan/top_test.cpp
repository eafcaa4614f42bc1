
#include "reference/top_rows.h"
#include "vulkan/chosen_device.h"
#include "vulkan/vulkan_backend.h"

namespace pumice {
namespace {

TEST(VulkanTop, LogitsThatAreNoNumbersAreFound) { cases::expect_not_finite_found(*vulkan::make_backend(vulkan::chosen_index())); }

}  // namespace
}  // namespace pumice
