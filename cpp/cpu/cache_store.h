// Stores the pages of a model's caches. One page holds 32 positions of all caches in contiguous memory. Within a page, the caches follow
// each other, and within a cache, the kv heads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/backend.h"
#include "cpu/buffer.h"

namespace pumice::cpu {

class PageStore final : public CacheStore {
 public:
  PageStore(std::span<const CacheShape> shapes, KvFormat format);

  void reserve(std::int32_t pages) override;
  void copy_page(std::int32_t from, std::int32_t to) override;
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override;
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override;
  std::uint64_t page_bytes() const override { return page_bytes_; }

  KvFormat format() const { return format_; }
  const std::vector<CacheShape>& shapes() const { return shapes_; }
  std::int32_t pages() const { return pages_.load(std::memory_order_acquire); }
  // Returns the address of a page; `id` must be below pages(). Pages never move, so this may run concurrently with reserve().
  std::uint8_t* page(std::int32_t id) const {
    return slabs_[static_cast<std::size_t>(id >> slab_bits_)].data() +
           static_cast<std::uint64_t>(id & ((1 << slab_bits_) - 1)) * page_bytes_;
  }
  // Returns the offset, within a page, of kv head `head` of a cache.
  std::uint64_t offset(CacheId cache, int head) const {
    const auto c = static_cast<std::size_t>(cache);
    return cache_offset_[c] + static_cast<std::uint64_t>(head) * head_bytes_[c];
  }

 private:
  std::vector<CacheShape> shapes_;
  KvFormat format_;
  std::vector<std::uint64_t> cache_offset_, head_bytes_;
  std::uint64_t page_bytes_ = 0;
  int slab_bits_ = 0;  // a slab holds 2^slab_bits_ pages, as many as fit in 16 MiB (at least 1, at most 2^14)
  std::mutex lock_;
  // Resized to its final length at once, so that its elements never move while another thread reads them.
  std::vector<Buffer> slabs_;
  std::atomic<std::int32_t> pages_{0};
};

// Returns the bytes of one page of caches with these shapes. Throws unsupported_model for impossible shapes.
std::uint64_t cache_page_bytes(std::span<const CacheShape> shapes, KvFormat format);

}  // namespace pumice::cpu
