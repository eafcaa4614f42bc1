#include "cpu/cache_store.h"

#include <cstring>

#include "core/checked.h"
#include "cpu/kernels.h"

namespace pumice::cpu {
namespace {

std::uint64_t checked_head_bytes(const CacheShape& shape, KvFormat format) {
  if (shape.heads < 1 || shape.heads > 65536) fail(ErrorKind::unsupported_model, "cache of ", shape.heads, " heads; needed: 1 to 65536");
  return static_cast<std::uint64_t>(kv_page_bytes(format, shape.key_dim, shape.value_dim));
}

// Returns the number of bytes of one operation's state, a multiple of 64.
std::uint64_t checked_state_bytes(const StateShape& shape) {
  const std::int64_t row = mul_or_fail<std::int64_t>(strips_of(shape.cols), kStripCols * sizeof(float), "state");
  return static_cast<std::uint64_t>(
      mul_or_fail<std::int64_t>(mul_or_fail<std::int64_t>(shape.matrices, shape.rows, "state"), row, "state"));
}

}  // namespace

std::uint64_t cache_page_bytes(std::span<const CacheShape> shapes, KvFormat format) {
  std::uint64_t bytes = 0;
  for (const CacheShape& shape : shapes) bytes += checked_head_bytes(shape, format) * static_cast<std::uint64_t>(shape.heads);
  return bytes;
}

std::uint64_t state_bytes(std::span<const StateShape> shapes) {
  std::uint64_t bytes = 0;
  for (const StateShape& shape : shapes) bytes += checked_state_bytes(shape);
  return bytes;
}

PageStore::PageStore(const Program& program, KvFormat format)
    : shapes_(program.caches),
      state_shapes_(program.states),
      format_(format),
      pages_(cache_page_bytes(shapes_, format), "the kv cache", "pages"),
      states_(cpu::state_bytes(state_shapes_), "states of recurrent layers", "states") {
  for (std::uint64_t at = 0; const CacheShape& shape : shapes_) {
    cache_offset_.push_back(at);
    head_bytes_.push_back(checked_head_bytes(shape, format));
    at += head_bytes_.back() * static_cast<std::uint64_t>(shape.heads);
  }
  for (std::uint64_t at = 0; const StateShape& shape : state_shapes_) {
    state_offset_.push_back(at);
    at += checked_state_bytes(shape);
  }
}

void PageStore::copy_page(std::int32_t from, std::int32_t to) {
  pages_.require_unit(from);
  pages_.require_unit(to);
  if (from != to && page_bytes() > 0) std::memcpy(page(to), page(from), page_bytes());
}

void PageStore::read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) {
  for (std::size_t i = 0; i < pages.size() && page_bytes() > 0; ++i) {
    pages_.require_unit(pages[i]);
    std::memcpy(out + i * stride, page(pages[i]), page_bytes());
  }
}

void PageStore::write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) {
  for (std::size_t i = 0; i < pages.size() && page_bytes() > 0; ++i) {
    pages_.require_unit(pages[i]);
    std::memcpy(page(pages[i]), in + i * stride, page_bytes());
  }
}

void PageStore::read_state(std::int32_t state, std::uint8_t* out) {
  states_.require_unit(state);
  if (state_bytes() > 0) std::memcpy(out, states_.at(state), state_bytes());
}

void PageStore::write_state(std::int32_t state, const std::uint8_t* in) {
  states_.require_unit(state);
  if (state_bytes() > 0) std::memcpy(states_.at(state), in, state_bytes());
}

}  // namespace pumice::cpu
