// The pages of a model's caches on a device. They lie in slabs. A slab is a buffer for a range of page ids. It holds the keys of its pages
// for the first cache, then their values, then the same for the next cache, and so on. A slab is small enough that one binding can hold the
// keys of one cache in it, and another binding the values.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/backend.h"
#include "vulkan/device.h"

namespace pumice::vulkan {

// The number of bytes that keys take, and the number that values take, in one page of a cache.
struct HalfPages {
  std::uint64_t keys = 0, values = 0;
};
HalfPages half_pages(const CacheShape& shape, KvFormat format);  // throws unsupported_model if the shape is not valid
// Returns the bytes of one page in all caches together.
std::uint64_t kv_page_bytes(std::span<const CacheShape> shapes, KvFormat format);

class GpuCaches final : public CacheStore {
 public:
  struct Slab {
    std::shared_ptr<Buffer> buffer;
    std::int32_t first = 0, pages = 0;        // holds page ids [first, first + pages)
    std::vector<std::uint64_t> keys, values;  // for each cache: byte offsets in `buffer` where the keys, or values, begin
  };

  GpuCaches(std::shared_ptr<Device> device, std::span<const CacheShape> shapes, KvFormat format);

  // The page pool calls these functions, only one at a time. Programs may run at the same time. None of these functions waits until a run
  // ends, because the caller holds the lock of the page pool meanwhile and has no Cancel to stop the wait.
  void reserve(std::int32_t pages) override;
  void copy_page(std::int32_t from, std::int32_t to) override;
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override;
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override;
  std::uint64_t page_bytes() const override { return page_bytes_; }

  // The slabs at one moment. While a thread holds Device::turn(), no slab is replaced, but slabs may be added.
  struct Slabs {
    std::vector<Slab> all;
    std::int32_t pages = 0;     // number of pages in all slabs
    std::uint32_t version = 0;  // changes whenever the slabs change
  };
  std::shared_ptr<const Slabs> slabs() const {
    const std::lock_guard lock(mutex_);
    return slabs_;
  }
  std::uint64_t id() const { return id_; }  // a number that no other store of this process has
  KvFormat format() const { return format_; }
  const std::vector<CacheShape>& shapes() const { return shapes_; }

 private:
  Slab slab(std::int32_t first, std::int32_t pages) const;
  std::vector<Slab> layout(std::int32_t first, std::int32_t pages) const;
  void copy_pages(std::span<const Slab> from, std::span<const Slab> to) const;
  Slab page_of(const Slabs& slabs, std::int32_t page) const;
  // Returns the regions to copy between a page in its slab and the same page in staging memory, where it begins at byte `at`.
  std::vector<VkBufferCopy> regions(const Slab& page, std::uint64_t at, bool to_slab) const;
  template <class Byte, class Each>
  void through_staging(std::span<const std::int32_t> pages, Byte* host, std::uint64_t stride, Place place, Each&& each) const;

  const std::shared_ptr<Device> device_;
  const std::vector<CacheShape> shapes_;
  const KvFormat format_;
  std::vector<HalfPages> half_pages_;  // for each cache
  std::uint64_t page_bytes_ = 0;
  std::int32_t slab_pages_ = 0;  // maximum number of pages in a slab
  mutable std::mutex mutex_;
  std::shared_ptr<const Slabs> slabs_ = std::make_shared<Slabs>();
  const std::uint64_t id_;
};

}  // namespace pumice::vulkan
