// Parts of tensors that were read last. Some tensors have the rows of a matrix spread over many of their bytes: a part of the tensor is
// then read once, and its rows are taken from memory.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "core/fork_lock.h"

namespace pumice::files {

// Threads may share it.
class Slices {
 public:
  using Bytes = std::shared_ptr<const std::uint8_t>;

  // What makes a part: job(index, bytes) for each index in [0, jobs). The jobs write different ones of the part's `size` bytes, in any
  // order and on several threads at once.
  struct Making {
    std::size_t size;
    std::int64_t jobs;
    std::function<void(std::int64_t index, std::uint8_t* bytes)> job;
  };

  // Returns part `number` of a tensor. If it is not in memory, it is made: all threads that ask for it meanwhile take jobs. So they must
  // ask with the same jobs. Throws what a job throws, in all these threads; the part is then made anew when it is next asked for. `tensor`
  // is any address that stands for the tensor.
  Bytes of(const void* tensor, std::int64_t number, const Making& making) {
    const std::shared_ptr<Part> part = found_or_new(tensor, number, making);
    part->help(making);
    if (part->error) {
      forget(part);
      std::rethrow_exception(part->error);
    }
    return {part, part->buffer->bytes.get()};
  }

 private:
  // Memory that was used before is faster than new memory, so that parts use that of earlier ones.
  struct Buffer {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
    std::atomic<bool> used = false;  // by a part
  };

  struct Part {
    Part(const void* whole, std::int64_t index, std::int64_t count, std::shared_ptr<Buffer> memory)
        : tensor(whole), number(index), jobs(count), buffer(std::move(memory)) {
      buffer->used.store(true);
    }
    ~Part() { buffer->used.store(false); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // Takes jobs until there are no more, and waits for those that other threads took.
    void help(const Making& making) {
      for (std::int64_t index = next.fetch_add(1); index < jobs; index = next.fetch_add(1)) {
        try {
          if (!failed.load()) making.job(index, buffer->bytes.get());
        } catch (...) {
          if (!failed.exchange(true)) error = std::current_exception();
        }
        if (done.fetch_add(1) + 1 == jobs) done.notify_all();
      }
      for (std::int64_t now = done.load(); now < jobs; now = done.load()) done.wait(now);
    }
    // A fork may have interrupted the threads that made the part. They do not exist in the child.
    bool complete_or_ours() const { return done.load() >= jobs || process == ::getpid(); }

    const void* tensor;
    std::int64_t number, jobs;
    std::shared_ptr<Buffer> buffer;
    const std::int64_t process = ::getpid();  // that makes it
    std::atomic<std::int64_t> next = 0, done = 0;
    std::atomic<bool> failed = false;
    std::exception_ptr error;  // of the first job that failed; read when all jobs are done
  };

  // Waits for the lock. The slices of a thread that a fork interrupted may be half changed: they are never freed.
  std::unique_lock<ForkLock> locked() {
    if (!lock_.lock()) {
      static_cast<void>(new auto(std::exchange(last_, {})));
      static_cast<void>(new auto(std::exchange(buffers_, {})));
    }
    return {lock_, std::adopt_lock};
  }

  std::shared_ptr<Part> found_or_new(const void* tensor, std::int64_t number, const Making& making) {
    const std::unique_lock lock = locked();
    for (const std::shared_ptr<Part>& part : last_)
      if (part && part->tensor == tensor && part->number == number && part->complete_or_ours()) return part;
    std::swap(last_[0], last_[1]);
    last_[0] = {};  // its memory is free before the next part is made
    last_[0] = std::make_shared<Part>(tensor, number, making.jobs, free_buffer(making.size));
    return last_[0];
  }

  void forget(const std::shared_ptr<Part>& part) {
    const std::unique_lock lock = locked();
    for (std::shared_ptr<Part>& kept : last_)
      if (kept == part) kept = {};
  }

  // Returns a buffer of at least this size that no part uses. If there is none, makes one, which is kept if there is a place for it.
  std::shared_ptr<Buffer> free_buffer(std::size_t size) {
    std::shared_ptr<Buffer> found;
    for (std::shared_ptr<Buffer>& buffer : buffers_) {
      if (!buffer) buffer = std::make_shared<Buffer>();
      if (buffer->used.load()) continue;
      found = buffer;
      break;
    }
    if (!found) found = std::make_shared<Buffer>();
    if (found->size < size) {
      found->bytes.reset();
      found->size = 0;
      found->bytes = std::make_unique_for_overwrite<std::uint8_t[]>(size);
      found->size = size;
    }
    return found;
  }

  ForkLock lock_;
  std::array<std::shared_ptr<Part>, 2> last_;       // two, because threads may read neighbouring parts
  std::array<std::shared_ptr<Buffer>, 3> buffers_;  // one more than parts, because a thread may still use an older one
};

}  // namespace pumice::files
