#include "vulkan/cache_store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/checked.h"
#include "vulkan/plan.h"

namespace pumice::vulkan {
namespace {

std::uint64_t next_cache_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::vector<std::uint64_t> page_planes(std::span<const CacheShape> shapes, KvFormat format) {
  std::vector<std::uint64_t> planes;
  for (const CacheShape& shape : shapes) {
    for (const auto& [dim, most] : {std::pair(shape.key_dim, kMaxKeyDim), std::pair(shape.value_dim, kMaxValueDim)}) {
      if (shape.heads < 1 || shape.heads > 65536 || dim < 1 || dim > most) {
        fail(ErrorKind::unsupported_model, "a cache of ", shape.heads, " kv heads of ", dim, "; needed: 1 to 65536 heads of 1 to ", most,
             " values");
      }
    }
    const PageWords words = page_words(format, shape);
    planes.push_back(4 * words.keys);
    planes.push_back(4 * words.values);
  }
  return planes;
}

std::vector<std::uint64_t> state_planes(std::span<const StateShape> shapes) {
  std::vector<std::uint64_t> planes;
  for (const StateShape& shape : shapes) planes.push_back(aligned(std::max<std::uint64_t>(1, state_words(shape) * 4)));
  return planes;
}

GpuCaches::GpuCaches(std::shared_ptr<Device> device, const Program& program, KvFormat format)
    : shapes_(program.caches),
      state_shapes_(program.states),
      format_(format),
      pages_(device, page_planes(shapes_, format), "keys and values", "page"),
      states_(device, state_planes(state_shapes_), "states of recurrent layers", "state"),
      id_(next_cache_id()) {}

}  // namespace pumice::vulkan
