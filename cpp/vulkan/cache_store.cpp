#include "vulkan/cache_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>

#include "core/checked.h"
#include "core/program_check.h"
#include "vulkan/plan.h"
#include "vulkan/recorder.h"

namespace pumice::vulkan {
namespace {

std::uint64_t next_cache_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

HalfPages half_pages(const CacheShape& shape, KvFormat format) {
  for (const std::int32_t dim : {shape.key_dim, shape.value_dim}) {
    if (shape.heads < 1 || shape.heads > 65536 || dim < 1 || dim > kMaxHeadDim) {
      fail(ErrorKind::unsupported_model, "a cache of ", shape.heads, " kv heads of ", dim, "; needed: 1 to 65536 heads of 1 to ",
           kMaxHeadDim, " values");
    }
  }
  const PageWords words = page_words(format, shape);
  return {4 * words.keys, 4 * words.values};
}

std::uint64_t kv_page_bytes(std::span<const CacheShape> shapes, KvFormat format) {
  std::uint64_t bytes = 0;
  for (const CacheShape& shape : shapes) {
    const HalfPages half = half_pages(shape, format);
    bytes += half.keys + half.values;
  }
  return bytes;
}

GpuCaches::GpuCaches(std::shared_ptr<Device> device, std::span<const CacheShape> shapes, KvFormat format)
    : device_(std::move(device)), shapes_(shapes.begin(), shapes.end()), format_(format), id_(next_cache_id()) {
  std::uint64_t largest = 1;
  for (const CacheShape& shape : shapes_) {
    half_pages_.push_back(half_pages(shape, format));
    largest = std::max({largest, half_pages_.back().keys, half_pages_.back().values});
  }
  page_bytes_ = kv_page_bytes(shapes_, format);
  const DeviceLimits& limits = device_->limits();
  const std::uint64_t slack = 512 * (half_pages_.size() + 1);  // bytes that alignment may add to a slab
  const std::uint64_t by_range = limits.range / largest;
  const std::uint64_t by_allocation = limits.allocation > slack ? (limits.allocation - slack) / std::max<std::uint64_t>(1, page_bytes_) : 0;
  slab_pages_ = static_cast<std::int32_t>(std::min<std::uint64_t>({by_range, by_allocation, 1 << 30}));
  if (slab_pages_ < 1) {
    fail(ErrorKind::unsupported_model, device_->physical().name, ": a cache page of ", page_bytes_, " bytes is more than it binds (",
         limits.range, ") or allocates (", limits.allocation, ") at once");
  }
}

GpuCaches::Slab GpuCaches::slab(std::int32_t first, std::int32_t pages) const {
  Slab slab{nullptr, first, pages, {}, {}};
  std::uint64_t at = 0;
  for (const HalfPages& half : half_pages_) {
    slab.keys.push_back(at);
    at += aligned(half.keys * static_cast<std::uint64_t>(pages));
    slab.values.push_back(at);
    at += aligned(half.values * static_cast<std::uint64_t>(pages));
  }
  slab.buffer = device_->buffer(at, Place::device, "keys and values");
  return slab;
}

std::vector<GpuCaches::Slab> GpuCaches::layout(std::int32_t first, std::int32_t pages) const {
  std::vector<Slab> slabs;
  for (; pages > 0; first += slabs.back().pages, pages -= slabs.back().pages) slabs.push_back(slab(first, std::min(pages, slab_pages_)));
  return slabs;
}

// Copies every page that is both in a slab of `from` and in a slab of `to`.
void GpuCaches::copy_pages(std::span<const Slab> from, std::span<const Slab> to) const {
  std::vector<Command> commands;
  for (const Slab& source : from) {
    for (const Slab& target : to) {
      const std::int32_t first = std::max(source.first, target.first),
                         end = std::min(source.first + source.pages, target.first + target.pages);
      if (first >= end) continue;
      Copy copy{source.buffer.get(), target.buffer.get(), {}};
      for (std::size_t c = 0; c < half_pages_.size(); ++c) {
        const auto pages = static_cast<std::uint64_t>(end - first), source_page = static_cast<std::uint64_t>(first - source.first),
                   target_page = static_cast<std::uint64_t>(first - target.first);
        const auto copy_half = [&](std::uint64_t half, std::uint64_t source_at, std::uint64_t target_at) {
          copy.regions.push_back(
              {.srcOffset = source_at + source_page * half, .dstOffset = target_at + target_page * half, .size = pages * half});
        };
        copy_half(half_pages_[c].keys, source.keys[c], target.keys[c]);
        copy_half(half_pages_[c].values, source.values[c], target.values[c]);
      }
      commands.emplace_back(std::move(copy));
    }
  }
  Recording(device_, std::move(commands)).run(Cancel{});
}

// Attention needs one dispatch per slab, so there should be few slabs. If the last slabs have fewer than slab_pages_ pages, they are
// replaced by larger ones. This needs memory for the old and the new slabs at once, and no run may use the old slabs meanwhile. If there is
// not enough memory, or if a run does not end within kPatience, slabs are added instead, and a later call of reserve() joins them.
void GpuCaches::reserve(std::int32_t pages) {
  // Longer than a decode step, so that the wait usually succeeds, but shorter than a prefill, because the caller holds the page pool.
  constexpr auto kPatience = std::chrono::milliseconds(50);
  if (half_pages_.empty()) return;
  device_->check_alive();
  const std::shared_ptr<const Slabs> now = slabs();
  if (pages <= now->pages) return;
  std::size_t kept = now->all.size();
  while (kept > 0 && now->all[kept - 1].pages < slab_pages_) --kept;
  std::vector<Slab> grown;
  std::unique_lock turn(device_->turn(), std::defer_lock);
  if (kept < now->all.size() && turn.try_lock_for(kPatience)) {
    const std::int32_t first = now->all[kept].first;
    try {
      grown = layout(first, pages - first);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::out_of_device_memory) throw;
    }
  }
  if (!grown.empty()) {
    copy_pages(std::span(now->all).subspan(kept), grown);
  } else {
    kept = now->all.size();
    grown = layout(now->pages, pages - now->pages);
  }
  auto next = std::make_shared<Slabs>();
  next->all.assign(now->all.begin(), now->all.begin() + static_cast<std::ptrdiff_t>(kept));
  next->all.insert(next->all.end(), std::make_move_iterator(grown.begin()), std::make_move_iterator(grown.end()));
  next->pages = pages;
  next->version = now->version + 1;
  const std::lock_guard lock(mutex_);
  slabs_ = std::move(next);
}

// Returns a slab that consists of this page only.
GpuCaches::Slab GpuCaches::page_of(const Slabs& slabs, std::int32_t page) const {
  for (const Slab& slab : slabs.all) {
    if (page < slab.first || page >= slab.first + slab.pages) continue;
    Slab one = slab;
    one.first = 0, one.pages = 1;
    for (std::size_t c = 0; c < half_pages_.size(); ++c) {
      one.keys[c] += half_pages_[c].keys * static_cast<std::uint64_t>(page - slab.first);
      one.values[c] += half_pages_[c].values * static_cast<std::uint64_t>(page - slab.first);
    }
    return one;
  }
  fail(ErrorKind::invalid_argument, "page ", page, " of ", slabs.pages);
}

// The caller makes sure that no run writes to either page. The slabs are not replaced during this call, because only reserve() replaces
// them, and the caller does not call reserve() meanwhile.
void GpuCaches::copy_page(std::int32_t from, std::int32_t to) {
  if (half_pages_.empty()) return;
  device_->check_alive();
  const std::shared_ptr<const Slabs> now = slabs();
  const Slab source = page_of(*now, from), target = page_of(*now, to);
  copy_pages({&source, 1}, {&target, 1});
}

// On the host, and in staging memory, a page is one block of bytes. It holds the keys and then the values of the first cache, then those of
// the next cache, and so on.
std::vector<VkBufferCopy> GpuCaches::regions(const Slab& page, std::uint64_t at, bool to_slab) const {
  std::vector<VkBufferCopy> all;
  const auto add = [&](std::uint64_t in_slab, std::uint64_t bytes) {
    all.push_back({.srcOffset = to_slab ? at : in_slab, .dstOffset = to_slab ? in_slab : at, .size = bytes});
    at += bytes;
  };
  for (std::size_t c = 0; c < half_pages_.size(); ++c) {
    add(page.keys[c], half_pages_[c].keys);
    add(page.values[c], half_pages_[c].values);
  }
  return all;
}

// Divides `pages` into batches that fit in a staging buffer of 32 MiB, and calls each(staging, batch, host memory of the batch) for each
// batch.
template <class Byte, class Each>
void GpuCaches::through_staging(std::span<const std::int32_t> pages, Byte* host, std::uint64_t stride, Place place, Each&& each) const {
  if (half_pages_.empty() || pages.empty()) return;
  device_->check_alive();
  const std::uint64_t most = std::min<std::uint64_t>(32 << 20, device_->limits().allocation);
  const std::size_t at_once = std::min<std::size_t>(pages.size(), static_cast<std::size_t>(std::max<std::uint64_t>(1, most / page_bytes_)));
  const auto staging = device_->buffer(at_once * page_bytes_, place, "staging memory of keys and values");
  for (std::size_t first = 0; first < pages.size(); first += at_once)
    each(*staging, pages.subspan(first, std::min(at_once, pages.size() - first)), host + first * stride);
}

void GpuCaches::read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) {
  through_staging(pages, out, stride, Place::readback, [&](const Buffer& staging, std::span<const std::int32_t> some, std::uint8_t* to) {
    const std::shared_ptr<const Slabs> now = slabs();
    std::vector<Command> commands;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Slab page = page_of(*now, some[i]);
      commands.emplace_back(Copy{page.buffer.get(), &staging, regions(page, i * page_bytes_, false)});
    }
    Recording(device_, std::move(commands)).run(Cancel{});
    for (std::size_t i = 0; i < some.size(); ++i) std::memcpy(to + i * stride, staging.mapped() + i * page_bytes_, page_bytes_);
  });
}

void GpuCaches::write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) {
  const auto upload = [&](const Buffer& staging, std::span<const std::int32_t> some, const std::uint8_t* from) {
    const std::shared_ptr<const Slabs> now = slabs();
    std::vector<Command> commands;
    for (std::size_t i = 0; i < some.size(); ++i) {
      std::memcpy(staging.mapped() + i * page_bytes_, from + i * stride, page_bytes_);
      const Slab page = page_of(*now, some[i]);
      commands.emplace_back(Copy{&staging, page.buffer.get(), regions(page, i * page_bytes_, true)});
    }
    Recording(device_, std::move(commands)).run(Cancel{});
  };
  through_staging(pages, in, stride, Place::upload, upload);
}

}  // namespace pumice::vulkan
