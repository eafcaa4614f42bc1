// The weights of the next panel come to L1 while the tiles of this one compute, a few lines a block. Asked for all at once, by whoever
// reads the panel first, they took a third of the time of a product of 20 tokens.
#pragma once

#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

class Ahead {
 public:
  // `bytes` from `at` on, in so many calls of some(); of `streams` that are `apart`.
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
