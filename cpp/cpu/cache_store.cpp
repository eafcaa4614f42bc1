#include "cpu/cache_store.h"

#include <algorithm>
#include <cstring>

#include "core/checked.h"
#include "cpu/kernels.h"

namespace pumice::cpu {
namespace {

constexpr std::uint64_t kSlabBytes = 16 << 20;
constexpr std::size_t kSlabs = 1 << 16;

std::uint64_t checked_head_bytes(const CacheShape& shape, KvFormat format) {
  if (shape.heads < 1 || shape.heads > 65536) fail(ErrorKind::unsupported_model, "cache of ", shape.heads, " heads; needed: 1 to 65536");
  return static_cast<std::uint64_t>(kv_page_bytes(format, shape.key_dim, shape.value_dim));
}

}  // namespace

std::uint64_t cache_page_bytes(std::span<const CacheShape> shapes, KvFormat format) {
  std::uint64_t bytes = 0;
  for (const CacheShape& shape : shapes) bytes += checked_head_bytes(shape, format) * static_cast<std::uint64_t>(shape.heads);
  return bytes;
}

PageStore::PageStore(std::span<const CacheShape> shapes, KvFormat format) : shapes_(shapes.begin(), shapes.end()), format_(format) {
  page_bytes_ = cache_page_bytes(shapes, format);
  for (std::uint64_t at = 0; const CacheShape& shape : shapes_) {
    cache_offset_.push_back(at);
    head_bytes_.push_back(checked_head_bytes(shape, format));
    at += head_bytes_.back() * static_cast<std::uint64_t>(shape.heads);
  }
  while (slab_bits_ < 14 && (page_bytes_ << (slab_bits_ + 1)) <= kSlabBytes) ++slab_bits_;
  slabs_.resize(kSlabs);
}

void PageStore::reserve(std::int32_t pages) {
  const std::lock_guard lock(lock_);
  if (page_bytes_ == 0) pages_.store(std::max(pages, this->pages()), std::memory_order_release);
  const std::int32_t per_slab = 1 << slab_bits_;
  while (this->pages() < pages) {
    const auto slab = static_cast<std::size_t>(this->pages() >> slab_bits_);
    if (slab >= kSlabs) {
      fail(ErrorKind::out_of_memory, "kv cache: ", pages, " pages of ", page_bytes_, " bytes are more than the ",
           kSlabs * static_cast<std::size_t>(per_slab), " that this version keeps; lower the cache budget");
    }
    const std::uint64_t bytes = page_bytes_ << slab_bits_;
    check_memory(bytes, "the kv cache");
    slabs_[slab] = Buffer(bytes, "kv cache");
    pages_.store(this->pages() + std::min(per_slab, INT32_MAX - this->pages()), std::memory_order_release);
  }
}

void PageStore::copy_page(std::int32_t from, std::int32_t to) {
  require(from >= 0 && from < pages() && to >= 0 && to < pages(), "kv cache: copy of page ", from, " to ", to, " of ", pages());
  if (from != to && page_bytes_ > 0) std::memcpy(page(to), page(from), page_bytes_);
}

void PageStore::read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) {
  for (std::size_t i = 0; i < pages.size() && page_bytes_ > 0; ++i) {
    require(pages[i] >= 0 && pages[i] < this->pages(), "kv cache: page ", pages[i], " of ", this->pages());
    std::memcpy(out + i * stride, page(pages[i]), page_bytes_);
  }
}

void PageStore::write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) {
  for (std::size_t i = 0; i < pages.size() && page_bytes_ > 0; ++i) {
    require(pages[i] >= 0 && pages[i] < this->pages(), "kv cache: page ", pages[i], " of ", this->pages());
    std::memcpy(page(pages[i]), in + i * stride, page_bytes_);
  }
}

}  // namespace pumice::cpu
