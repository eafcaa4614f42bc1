// A lock that does not block the child of a fork(). If a thread held the lock during the fork(), the child takes the lock over.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace pumice {

// If a thread of the parent holds the lock during a fork(), the child has no thread that would release the lock. ForkLock therefore stores
// the process id of its holder, and lock() in the child takes the lock over. (ProcessLock in engine/at_fork.h throws an error in the child
// instead.)
class ForkLock {
 public:
  // Waits until the lock is free, then takes it. Returns false if the lock was held in the process that this process was forked from. The
  // data that the lock guards might then be only partly changed.
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
  std::atomic<std::int64_t> holder_{0};  // process id of the holder; 0 if the lock is free
};

}  // namespace pumice
