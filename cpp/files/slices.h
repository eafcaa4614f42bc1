// Parts of tensors that were read last. Some tensors have the rows of a matrix spread over many of their bytes: a part of the tensor is
// then read once, and its rows are taken from memory.
#pragma once

#include <array>
#include <atomic>
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

  // Returns what `read` wrote for part `number` of a tensor. Calls it if the part is not in memory, with bytes of any number and contents,
  // which are those of an earlier part: memory that was used before is faster than new memory. `tensor` is any address that stands for the
  // tensor.
  Bytes of(const void* tensor, std::int64_t number, const std::function<void(std::vector<std::uint8_t>& bytes)>& read) {
    // The slices of a thread that a fork interrupted may be half changed. They are never freed.
    if (!lock_.lock()) {
      static_cast<void>(new auto(std::exchange(last_, {})));
      static_cast<void>(new auto(std::exchange(buffers_, {})));
    }
    const std::unique_lock lock(lock_, std::adopt_lock);
    for (const Slice& slice : last_)
      if (slice.tensor == tensor && slice.number == number) return slice.bytes;
    std::swap(last_[0], last_[1]);
    last_[0] = {};  // its memory is free before the next slice is read
    const std::shared_ptr<Buffer> buffer = free_buffer();
    read(buffer->bytes);
    buffer->used.store(true);
    last_[0] = {tensor, number, Bytes(&buffer->bytes, [buffer](const auto*) { buffer->used.store(false); })};
    return last_[0].bytes;
  }

 private:
  struct Slice {
    const void* tensor = nullptr;
    std::int64_t number = 0;
    Bytes bytes;
  };
  struct Buffer {
    std::vector<std::uint8_t> bytes;
    std::atomic<bool> used = false;  // by a slice
  };

  // Returns a buffer that no slice uses. If there is none, makes one, which is kept if there is a place for it.
  std::shared_ptr<Buffer> free_buffer() {
    for (std::shared_ptr<Buffer>& buffer : buffers_) {
      if (!buffer) buffer = std::make_shared<Buffer>();
      if (!buffer->used.load()) return buffer;
    }
    return std::make_shared<Buffer>();
  }

  ForkLock lock_;
  std::array<Slice, 2> last_;                       // two, because threads may read neighbouring parts
  std::array<std::shared_ptr<Buffer>, 3> buffers_;  // one more than slices, because a thread may still use an older one
};

}  // namespace pumice::files
