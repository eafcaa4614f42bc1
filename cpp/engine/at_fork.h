// Keeps objects consistent across a fork(). The child has only the thread that called fork(). If another thread of the parent held a lock,
// that lock would stay locked in the child for ever, and the data that it guards might be half changed. So the forking thread takes all
// locks before the fork, and the child discards the state of threads that it does not have.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>

namespace pumice::engine {

// Calls its hooks at each fork() during its lifetime. Must be the last member of the class that owns it, so that it is destroyed first and
// no hook uses a destroyed member.
class AtFork {
 public:
  struct Hooks {
    std::function<void()> before, in_parent, in_child;  // these functions must not throw
  };
  explicit AtFork(Hooks hooks);
  ~AtFork();
  AtFork(const AtFork&) = delete;
  AtFork& operator=(const AtFork&) = delete;

 private:
  friend class ForkRegistry;
  const Hooks hooks_;
};

// A lock for long work of a model, such as building its programs. Because the work is long, a fork() does not wait for its end. Instead,
// the lock stores the process id of its holder. If another thread held the lock when the process forked, lock() in the child throws
// forked_device instead of waiting for ever.
class ProcessLock {
 public:
  void lock();
  void unlock() noexcept;

 private:
  std::atomic<pid_t> holder_{0};
};

}  // namespace pumice::engine
