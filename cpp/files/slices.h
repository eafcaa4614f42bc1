// A cache of the parts of tensors that were read last. In some tensors, the bytes of one row are spread over the whole tensor. So a part
// with many rows is read at once, and the rows are then taken from memory.
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

// Keeps the two parts that were read last. Threads may call of() at the same time.
class Slices {
 public:
  using Bytes = std::shared_ptr<const std::uint8_t>;

  // Describes how a part of `size` bytes is made: job(index, bytes) is called for each index in [0, jobs). No two jobs write the same byte
  // of the part. Jobs run in any order and on several threads at once.
  struct Making {
    std::size_t size;
    std::int64_t jobs;
    std::function<void(std::int64_t index, std::uint8_t* bytes)> job;
  };

  // Returns part `number` of a tensor. `tensor` is any address that identifies the tensor. Makes the part if it is not in memory. Threads
  // that ask for the same part meanwhile run some of its jobs, so all must pass the same `making`. If a job throws, all these calls throw
  // its exception, and the next call makes the part again.
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
  // The memory of a part. New parts reuse the buffers of earlier parts, because writing to memory that was used before is faster than to
  // new memory.
  struct Buffer {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
    std::atomic<bool> used = false;  // true while a Part has this buffer
  };

  struct Part {
    Part(const void* whole, std::int64_t index, std::int64_t count, std::shared_ptr<Buffer> memory)
        : tensor(whole), number(index), jobs(count), buffer(std::move(memory)) {
      buffer->used.store(true);
    }
    ~Part() { buffer->used.store(false); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // Runs jobs until all have been started, and waits until the jobs of other threads are done.
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
    // Returns false if the part can never be completed, because this process is a child that was forked while threads made the part. These
    // threads do not exist in the child.
    bool complete_or_ours() const { return done.load() >= jobs || process == ::getpid(); }

    const void* tensor;
    std::int64_t number, jobs;
    std::shared_ptr<Buffer> buffer;
    const std::int64_t process = ::getpid();  // id of the process that makes the part
    std::atomic<std::int64_t> next = 0, done = 0;
    std::atomic<bool> failed = false;
    std::exception_ptr error;  // exception of the first job that failed; may be read only when all jobs are done
  };

  // Waits for the lock. If the process was forked while a thread had the lock, last_ and buffers_ may be half changed in the child. The
  // child then empties both without freeing their old contents, which may be invalid.
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
    last_[0] = {};  // releases the buffer of the oldest part, so that the new part can have it
    last_[0] = std::make_shared<Part>(tensor, number, making.jobs, free_buffer(making.size));
    return last_[0];
  }

  void forget(const std::shared_ptr<Part>& part) {
    const std::unique_lock lock = locked();
    for (std::shared_ptr<Part>& kept : last_)
      if (kept == part) kept = {};
  }

  // Returns a buffer of at least `size` bytes that no part uses. If all of buffers_ are in use, returns a new buffer that is not kept in
  // buffers_.
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
  std::array<std::shared_ptr<Part>, 2> last_;       // two parts, because threads may read neighbouring parts at the same time
  std::array<std::shared_ptr<Buffer>, 3> buffers_;  // one more than last_ has, because a thread may still use an older part
};

}  // namespace pumice::files
