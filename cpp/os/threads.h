// Threads: their names, which one is the process's first, and a thread that is joined.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>

namespace pumice::os {

// Names the calling thread, for debuggers and programs such as top. `name` has at most 15 characters.
void name_this_thread(const char* name);

// Tells the system that the calling thread computes what a user waits for. Without it, macOS may run the thread on a slow core.
void expect_work_on_this_thread();

// Returns whether the calling thread is the one that the process began with. In the child of a fork(), that is its only thread.
bool on_first_thread();

// The time of a processor that a thread has used. Other threads may ask for it while the thread runs.
class ThreadClock {
 public:
  ThreadClock() = default;  // of no thread
  static ThreadClock of_this_thread();
  std::chrono::nanoseconds used() const;  // 0 if the system does not say it

 private:
  bool known_ = false;
  std::int64_t handle_ = 0;  // of the system
};

// A thread that is joined by the destructor. (Not std::jthread: libc++ has none up to version 19, except as an experiment.)
class Thread {
 public:
  Thread() = default;
  template <class Work>
    requires(!std::is_same_v<std::remove_cvref_t<Work>, Thread>)
  explicit Thread(Work&& work) : thread_(std::forward<Work>(work)) {}
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept {
    join();
    thread_ = std::move(other.thread_);
    return *this;
  }
  ~Thread() { join(); }

  bool joinable() const { return thread_.joinable(); }
  void detach() { thread_.detach(); }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  std::thread thread_;
};

}  // namespace pumice::os
