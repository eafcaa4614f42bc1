// Keeps objects whole over a fork(). The child has only the thread that forked. If another thread of the parent held a lock, that lock
// stays locked in the child for ever, and the data that it guards may be half changed. So the forking thread takes all locks first, and the
// child forgets the threads that it lacks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>

namespace pumice::engine {

// Calls its hooks at each fork() for as long as it exists. Make it the last member of the class that owns it: it is then destroyed first,
// and no hook sees a destroyed member.
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

// A lock for long work, which a fork() does not wait for. It knows the process of its holder: if the lock was held when the process forked,
// lock() in the child throws forked_device instead of waiting for ever.
class ProcessLock {
 public:
  void lock();
  void unlock() noexcept;

 private:
  std::atomic<pid_t> holder_{0};
};

}  // namespace pumice::engine
