// Encoders on Vulkan devices with small limits. A batch that is too large for the device must be cut, and the vectors must stay the same.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "engine/embedder.h"
#include "engine/model.h"
#include "engine/toy.h"
#include "model/tiny.h"
#if PUMICE_VULKAN
#include "reference/op_cases.h"
#include "vulkan/device.h"
#include "vulkan/vulkan_backend.h"
#endif

namespace pumice::engine::limits_test {
namespace {

#if PUMICE_VULKAN
namespace tiny = model::tiny;

std::shared_ptr<Model> encoder_on(const std::shared_ptr<Backend>& device, const tiny::TempFolder& folder) {
  return Model::load_on(std::vector<std::shared_ptr<Backend>>{device}, tiny::open(tiny::make("bert", 2), folder),
                        {.compute = Compute::float32}, {}, Cancel{});
}

struct Input {
  explicit Input(std::size_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      for (std::uint64_t t = 0; t < 1 + toy::mix(i) % 60; ++t)
        ids.push_back(static_cast<std::int32_t>(toy::mix(i * 64 + t) % tiny::kVocab));
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  Texts texts() const { return {.ids = ids, .offsets = offsets, .types = {}}; }
  std::vector<float> vectors(Model& model) const {
    std::vector<float> out((offsets.size() - 1) * tiny::kHidden);
    encode(model.runtime(Task::vectors), texts(), out, tiny::kHidden, false, 1 << 20, {}, Cancel{});
    return out;
  }
  std::vector<float> token_vectors(Model& model) const {
    std::vector<float> out(ids.size() * tiny::kHidden);
    encode_tokens(model.runtime(Task::token_vectors), texts(), out, {}, Cancel{});
    return out;
  }
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> offsets = {0};
};

// In one batch, the 6,000 tokens would need 13 MB of memory and two bindings for their hidden rows. The limits allow neither.
TEST(SmallLimits, EncodersTakeAnyTokenBudget) {
  const char* index = std::getenv("PUMICE_TEST_VULKAN");
  vulkan::PhysicalDevice limited = vulkan::Instance::get().devices().at(index != nullptr ? std::strtoul(index, nullptr, 10) : 0);
  vulkan::lower_limits(limited.limits, "memory=6291456,allocation=4194304,range=1048576,groups=50");
  const Input input(200);
  const tiny::TempFolder folder;
  const auto cpu = encoder_on(cpu::make_backend(2), folder);
  const auto device = vulkan::Device::open(limited);
  {
    const auto model = encoder_on(vulkan::make_backend(device, 0), folder);
    ASSERT_FALSE(model->placement().problem);
    EXPECT_LT(cases::nmse(input.vectors(*model), input.vectors(*cpu), 0), 1e-10);
    EXPECT_LT(cases::nmse(input.token_vectors(*model), input.token_vectors(*cpu), 0), 1e-10);
  }
  EXPECT_EQ(device->allocated(), 0u);
}
#endif

}  // namespace
}  // namespace pumice::engine::limits_test
