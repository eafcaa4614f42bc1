// A workspace keeps the recordings of its runs. Two batches with equal numbers of tokens and texts may need other dispatches, because their
// texts have other lengths; a recording of the one must not be run for the other.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/embedder.h"
#include "engine/model.h"
#include "model/tiny.h"
#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan {
namespace {

TEST(Recordings, AreOfOneLayoutOfTables) {
  namespace of_models = model::tiny;
  const auto backend = make_backend(Device::open(physical()), 0);
  const of_models::TempFolder folder;
  const auto file = of_models::open(of_models::make("llama", 2), folder);
  const auto load = [&] {
    return engine::Model::load_on(std::vector<std::shared_ptr<Backend>>{backend}, file, {.compute = Compute::float32}, {}, Cancel{});
  };
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 64; ++i) ids.push_back(i * 7 % of_models::kVocab);
  const auto vectors = [&](engine::Model& model, std::int64_t first) {
    const std::array<std::int64_t, 3> offsets = {0, first, 64};
    std::vector<float> out(2 * of_models::kHidden);
    engine::encode(model.runtime(engine::Task::vectors), {.ids = ids, .offsets = offsets, .types = {}}, out, of_models::kHidden, false,
                   1 << 20, {}, Cancel{});
    return out;
  };
  const auto kept = load();
  // The texts take three pages in each batch, so all have the same scratch memory, but 33 + 31 rows need one tile of attention more than
  // 48 + 16.
  for (const std::int64_t first : {33, 48, 40, 63, 33}) EXPECT_EQ(vectors(*kept, first), vectors(*load(), first)) << first;
}

}  // namespace
}  // namespace pumice::vulkan
