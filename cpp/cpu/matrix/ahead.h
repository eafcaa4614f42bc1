// Prefetches the weights of the next panel into L1, a few cache lines a block, while the tiles of this panel compute. Without it, waiting
// for a panel's weights at its first use took a third of the time of a product of 20 tokens.
#pragma once

#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

class Ahead {
 public:
  // Prefetches `bytes` bytes from `at` on, spread over `calls` calls of some(), and as many bytes of each of `streams` streams that lie
  // `apart` bytes apart.
  Ahead(const std::uint8_t* at, std::int64_t bytes, std::int64_t calls, int streams = 1, std::int64_t apart = 0)
      : at_(at), end_(at + bytes), step_((bytes / calls + 63) / 64 * 64), streams_(streams), apart_(apart) {}
  void some() {
    const std::uint8_t* stop = end_ - at_ > step_ ? at_ + step_ : end_;
    for (; at_ < stop; at_ += 64)
      for (int i = 0; i < streams_; ++i) __builtin_prefetch(at_ + i * apart_);
  }

 private:
  const std::uint8_t *at_, *end_;
  std::int64_t step_;
  int streams_;
  std::int64_t apart_;
};

}  // namespace
}  // namespace pumice::cpu::matrix
