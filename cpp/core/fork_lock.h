// A lock for short or long work that a fork() does not wait for.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace pumice {

// If a thread of the parent holds the lock during a fork(), no thread of the child would release it. So the lock remembers the process of
// its holder, and lock() in the child takes it over. (ProcessLock of engine/at_fork.h refuses the child instead.)
class ForkLock {
 public:
  // Waits until the lock is free. Returns false if the lock was taken over from a process that this one was forked from: what the lock
  // guards may then be half changed.
  bool lock() {
    const std::int64_t self = ::getpid();
    for (;;) {
      std::int64_t holder = 0;
      if (holder_.compare_exchange_strong(holder, self)) return true;
      if (holder != self && holder_.compare_exchange_strong(holder, self)) return false;
      holder_.wait(self);
    }
  }
  void unlock() {
    holder_.store(0);
    holder_.notify_one();
  }

 private:
  std::atomic<std::int64_t> holder_{0};  // number of the process, or 0
};

}  // namespace pumice
