#include "vulkan/cache_store.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "core/checked.h"
#include "core/program_check.h"
#include "shaders/params.h"
#include "vulkan/recorder.h"

namespace pumice::vulkan {
namespace {

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

std::uint64_t slab_bytes(std::span<const std::uint64_t> half_pages, std::int64_t pages) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t half : half_pages) bytes += 2 * aligned(half * static_cast<std::uint64_t>(pages));
  return bytes;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::uint64_t kv_half_page_bytes(const CacheShape& shape, KvFormat format) {
  if (shape.kv_heads < 1 || shape.kv_heads > 65536 || shape.head_dim < 1 || shape.head_dim > kMaxHeadDim) {
    fail(ErrorKind::unsupported_model, "a cache of ", shape.kv_heads, " kv heads of ", shape.head_dim, "; heads have 1 to ", kMaxHeadDim, " values");
  }
  return 4 * params::kv_page_words(static_cast<std::uint32_t>(format), static_cast<std::uint32_t>(shape.head_dim),
                                   static_cast<std::uint32_t>(shape.kv_heads));
}

std::uint64_t kv_page_bytes(std::span<const CacheShape> shapes, KvFormat format) {
  std::uint64_t bytes = 0;
  for (const CacheShape& shape : shapes) bytes += 2 * kv_half_page_bytes(shape, format);
  return bytes;
}

GpuCaches::GpuCaches(std::shared_ptr<Device> device, std::span<const CacheShape> shapes, KvFormat format)
    : device_(std::move(device)), shapes_(shapes.begin(), shapes.end()), format_(format), id_(next_id()) {
  std::uint64_t largest = 1;
  for (const CacheShape& shape : shapes_) {
    half_page_bytes_.push_back(kv_half_page_bytes(shape, format));
    largest = std::max(largest, half_page_bytes_.back());
  }
  page_bytes_ = kv_page_bytes(shapes_, format);
  const Limits& limits = device_->limits();
  const std::uint64_t slack = 512 * (half_page_bytes_.size() + 1);  // alignment
  const std::uint64_t by_range = limits.range / largest;
  const std::uint64_t by_allocation = limits.allocation > slack ? (limits.allocation - slack) / std::max<std::uint64_t>(1, page_bytes_) : 0;
  slab_pages_ = static_cast<std::int32_t>(std::min<std::uint64_t>({by_range, by_allocation, 1 << 30}));
  if (slab_pages_ < 1) {
    fail(ErrorKind::unsupported_model, device_->physical().name, ": a cache page of ", page_bytes_, " bytes is more than it binds (", limits.range,
         ") or allocates (", limits.allocation, ") at once");
  }
}

GpuCaches::Slab GpuCaches::slab(std::int32_t first, std::int32_t pages) const {
  Slab slab{nullptr, first, pages, {}, {}};
  std::uint64_t at = 0;
  for (const std::uint64_t half : half_page_bytes_) {
    slab.keys.push_back(at);
    at += aligned(half * static_cast<std::uint64_t>(pages));
    slab.values.push_back(at);
    at += aligned(half * static_cast<std::uint64_t>(pages));
  }
  slab.buffer = device_->buffer(slab_bytes(half_page_bytes_, pages), Place::device, "keys and values");
  return slab;
}

std::vector<GpuCaches::Slab> GpuCaches::layout(std::int32_t first, std::int32_t pages) const {
  std::vector<Slab> slabs;
  for (; pages > 0; first += slabs.back().pages, pages -= slabs.back().pages) slabs.push_back(slab(first, std::min(pages, slab_pages_)));
  return slabs;
}

// Few slabs make few dispatches, so the last one is made anew at its larger size where memory allows, else another is put beside it.
void GpuCaches::reserve(std::int32_t pages) {
  if (half_page_bytes_.empty()) return;
  device_->check_alive();
  const std::lock_guard turn(device_->turn());
  if (pages <= pages_) return;
  std::vector<Slab> grown;
  const bool widens = !slabs_.empty() && slabs_.back().pages < slab_pages_;
  if (widens) {
    try {
      grown = layout(slabs_.back().first, pages - slabs_.back().first);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::out_of_device_memory) throw;
    }
  }
  slabs_.reserve(slabs_.size() + static_cast<std::size_t>(pages - pages_) / static_cast<std::size_t>(slab_pages_) + 2);  // nothing fails halfway
  if (!grown.empty()) {
    const Slab &from = slabs_.back(), &to = grown.front();
    Copy copy{from.buffer.get(), to.buffer.get(), {}};
    for (std::size_t c = 0; c < half_page_bytes_.size(); ++c) {
      const std::uint64_t bytes = half_page_bytes_[c] * static_cast<std::uint64_t>(from.pages);
      copy.regions.push_back({.srcOffset = from.keys[c], .dstOffset = to.keys[c], .size = bytes});
      copy.regions.push_back({.srcOffset = from.values[c], .dstOffset = to.values[c], .size = bytes});
    }
    const Command command = std::move(copy);
    Recording(device_, {&command, 1}).run(Cancel{});
    slabs_.pop_back();
  } else {
    grown = layout(pages_, pages - pages_);
  }
  slabs_.insert(slabs_.end(), std::make_move_iterator(grown.begin()), std::make_move_iterator(grown.end()));
  pages_ = pages;
  ++version_;
}

void GpuCaches::copy_page(std::int32_t from, std::int32_t to) {
  if (half_page_bytes_.empty()) return;
  device_->check_alive();
  const std::lock_guard turn(device_->turn());
  const auto slab_of = [&](std::int32_t page) -> const Slab& {
    for (const Slab& slab : slabs_) {
      if (page >= slab.first && page < slab.first + slab.pages) return slab;
    }
    fail(ErrorKind::invalid_argument, "page ", page, " of ", pages_);
  };
  const Slab &source = slab_of(from), &target = slab_of(to);
  Copy copy{source.buffer.get(), target.buffer.get(), {}};
  for (std::size_t c = 0; c < half_page_bytes_.size(); ++c) {
    const std::uint64_t half = half_page_bytes_[c];
    const std::uint64_t source_at = half * static_cast<std::uint64_t>(from - source.first), target_at = half * static_cast<std::uint64_t>(to - target.first);
    copy.regions.push_back({.srcOffset = source.keys[c] + source_at, .dstOffset = target.keys[c] + target_at, .size = half});
    copy.regions.push_back({.srcOffset = source.values[c] + source_at, .dstOffset = target.values[c] + target_at, .size = half});
  }
  const Command command = std::move(copy);
  Recording(device_, {&command, 1}).run(Cancel{});
}

}  // namespace pumice::vulkan
