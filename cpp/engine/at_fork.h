// What must hold on both sides of a fork(). Only the thread that forks lives on in the child: a lock that another one holds stays locked
// there for ever, and what it guards may be half changed. So locks are taken before, and the child forgets the threads that it lacks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>

namespace pumice::engine {

// Calls these at each fork() while it lives. A class keeps it as its last member: what the hooks use is whole as long as they can come.
class AtFork {
 public:
  struct Hooks {
    std::function<void()> before, in_parent, in_child;  // must not throw
  };
  explicit AtFork(Hooks hooks);
  ~AtFork();
  AtFork(const AtFork&) = delete;
  AtFork& operator=(const AtFork&) = delete;

 private:
  friend class ForkRegistry;
  const Hooks hooks_;
};

// A lock that may be held for long, by work that a fork() does not wait for: it knows the process of its holder. Where that was the
// parent, the holder is not here: lock() throws (forked_device) instead of waiting for ever.
class ProcessLock {
 public:
  void lock();
  void unlock() noexcept;

 private:
  std::atomic<pid_t> holder_{0};
};

}  // namespace pumice::engine
