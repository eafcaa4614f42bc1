// The pages of a model's caches. A page of all caches is one piece of memory: cache after cache, kv head after kv head.
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
  // Ids below pages() only. Pages never move: this may run beside reserve().
  std::uint8_t* page(std::int32_t id) const {
    return slabs_[static_cast<std::size_t>(id >> slab_bits_)].data() +
           static_cast<std::uint64_t>(id & ((1 << slab_bits_) - 1)) * page_bytes_;
  }
  // The offset of kv head `head` of a cache in a page.
  std::uint64_t offset(CacheId cache, int head) const {
    const auto c = static_cast<std::size_t>(cache);
    return cache_offset_[c] + static_cast<std::uint64_t>(head) * head_bytes_[c];
  }

 private:
  std::vector<CacheShape> shapes_;
  KvFormat format_;
  std::vector<std::uint64_t> cache_offset_, head_bytes_;
  std::uint64_t page_bytes_ = 0;
  int slab_bits_ = 0;  // a slab holds 2^slab_bits pages, as many as make about 16 MiB
  std::mutex lock_;
  std::vector<Buffer> slabs_;  // its full length from the start, so that readers never see it move
  std::atomic<std::int32_t> pages_{0};
};

// Bytes of one page in all `shapes`; fails (unsupported_model) on impossible shapes.
std::uint64_t cache_page_bytes(std::span<const CacheShape> shapes, KvFormat format);

}  // namespace pumice::cpu
