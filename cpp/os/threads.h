// Names and processor time of threads, a test for the process's first thread, and class Thread, whose destructor joins the thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>

namespace pumice::os {

// Sets the name of the calling thread, for debuggers and programs such as top. `name` has at most 15 characters.
void name_this_thread(const char* name);

// Informs the system that a user waits for the computations of the calling thread. Without this, macOS may run the thread on a slow core.
void expect_work_on_this_thread();

// Returns true if the calling thread is the process's first thread. In the child of a fork(), the only thread is the first thread.
bool on_first_thread();

// The processor time that a thread has used. Other threads may read it while the thread runs.
class ThreadClock {
 public:
  ThreadClock() = default;  // a clock of no thread; used() returns 0
  static ThreadClock of_this_thread();
  std::chrono::nanoseconds used() const;  // returns 0 if the system does not provide the time

 private:
  bool known_ = false;
  std::int64_t handle_ = 0;  // the system's handle of the clock or thread
};

// A thread that is joined by the destructor. (std::jthread is not used, because libc++ up to version 19 has it only as an experiment.)
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
