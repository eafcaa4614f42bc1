// Stores the pages of a model's caches and the states of its recurrent layers. One page holds 32 positions of all caches, cache after
// cache, and within a cache kv head after kv head. One state holds the values of all Conv and Scan operations, one operation after another.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"
#include "cpu/slabs.h"

namespace pumice::cpu {

// Number of columns in a strip. The state of Scan has one matrix per head. Each matrix is divided into strips of neighbouring columns. A
// strip is stored row after row, so that the task that works on it reads contiguous memory. Zeros fill the last strip if it has fewer
// columns.
inline constexpr std::int32_t kStripCols = 16;
constexpr std::int64_t strips_of(std::int32_t cols) { return (cols + kStripCols - 1) / kStripCols; }

class PageStore final : public CacheStore {
 public:
  PageStore(const Program& program, KvFormat format);

  void reserve(std::int32_t pages) override { pages_.reserve(pages); }
  void copy_page(std::int32_t from, std::int32_t to) override;
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override;
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override;
  std::uint64_t page_bytes() const override { return pages_.unit_bytes(); }

  void reserve_states(std::int32_t states) override { states_.reserve(states); }
  void read_state(std::int32_t state, std::uint8_t* out) override;
  void write_state(std::int32_t state, const std::uint8_t* in) override;
  std::uint64_t state_bytes() const override { return states_.unit_bytes(); }

  KvFormat format() const { return format_; }
  const std::vector<CacheShape>& shapes() const { return shapes_; }
  const std::vector<StateShape>& state_shapes() const { return state_shapes_; }
  std::int32_t pages() const { return pages_.count(); }
  std::int32_t states() const { return states_.count(); }
  std::uint8_t* page(std::int32_t id) const { return pages_.at(id); }
  // Returns the offset, in bytes within a page, of kv head `head` of a cache.
  std::uint64_t offset(CacheId cache, int head) const {
    const auto c = static_cast<std::size_t>(cache);
    return cache_offset_[c] + static_cast<std::uint64_t>(head) * head_bytes_[c];
  }
  // Returns the values in state `number` that belong to the Conv or Scan operation with the state `id`.
  float* state(std::int32_t number, StateId id) const {
    return reinterpret_cast<float*>(states_.at(number) + state_offset_[static_cast<std::size_t>(id)]);
  }

 private:
  std::vector<CacheShape> shapes_;
  std::vector<StateShape> state_shapes_;
  KvFormat format_;
  std::vector<std::uint64_t> cache_offset_, head_bytes_, state_offset_;
  Slabs pages_, states_;
};

// Returns the number of bytes of one page with caches of these shapes. Throws unsupported_model for impossible shapes.
std::uint64_t cache_page_bytes(std::span<const CacheShape> shapes, KvFormat format);
// Returns the number of bytes of one state, for operations whose states have these shapes.
std::uint64_t state_bytes(std::span<const StateShape> shapes);

}  // namespace pumice::cpu
