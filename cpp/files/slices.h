// Parts of tensors that were read last. Some tensors have the rows of a matrix spread over many of their bytes: a part of the tensor is
// then read and turned once, and its rows are taken from memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/fork_lock.h"

namespace pumice::files {

// Threads may share it.
class Slices {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::uint8_t>>;

  // Returns what `read` gave for part `number` of a tensor. Calls it if the part is not in memory. `tensor` is any address that stands for
  // the tensor.
  Bytes of(const void* tensor, std::int64_t number, const std::function<std::vector<std::uint8_t>()>& read) {
    // The slices of a thread that a fork interrupted may be half changed. They are never freed.
    if (!lock_.lock()) static_cast<void>(new std::array<Slice, 2>(std::exchange(last_, {})));
    const std::unique_lock lock(lock_, std::adopt_lock);
    for (const Slice& slice : last_)
      if (slice.tensor == tensor && slice.number == number) return slice.bytes;
    std::swap(last_[0], last_[1]);
    last_[0] = {};  // its memory is free before the next slice is read
    last_[0] = {tensor, number, std::make_shared<const std::vector<std::uint8_t>>(read())};
    return last_[0].bytes;
  }

 private:
  struct Slice {
    const void* tensor = nullptr;
    std::int64_t number = 0;
    Bytes bytes;
  };
  ForkLock lock_;
  std::array<Slice, 2> last_;  // two, because threads may read neighbouring parts
};

}  // namespace pumice::files
