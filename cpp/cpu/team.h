// A team of persistent threads that runs a job phase by phase. A phase has a number of tasks, which the threads claim one by one. The next
// phase begins when all tasks are done. Threads never wait for a thread that has not claimed a task. If the system does not schedule a
// thread (because there are more threads than processors, or because another process is busy), the other threads do its part of the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cancel.h"

namespace pumice::cpu {

inline constexpr std::int64_t kMaxTasks = (std::int64_t{1} << 22) - 8192;  // maximum number of tasks in one phase
inline constexpr int kMaxThreads = 4096;

class Job {
 public:
  virtual ~Job() = default;
  // Called on one thread before the first phase, and after all tasks of each phase. Does the work that is too small to divide into tasks,
  // and returns the number of tasks of the next phase. A result of 0 ends the job.
  virtual std::int64_t next(int thread) = 0;
  virtual void task(std::int64_t index, int thread) = 0;
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();  // no job may be running
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }
  // Runs `job` on all threads of the team. The calling thread is thread 0. If several threads call run(), their jobs run one after another,
  // in the order of the calls. The first exception from next() or task() ends the job and is rethrown here. If `cancel` is set, the job
  // ends with ErrorKind::cancelled, even while the caller waits for its turn. If run() is called from a task of any team, the job runs on
  // the calling thread alone.
  void run(Job& job, const Cancel& cancel);
  // Calls job(index, thread) for each index in [0, jobs).
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int thread)>& job, const Cancel& cancel);

  bool made_in_this_process() const;

 private:
  // One word holds the three numbers that a thread needs to claim a task: the number of the phase (20 bits), its number of tasks (22 bits)
  // and the index of the next task (22 bits). A claim is one fetch_add. If the index that a thread gets is less than the number of tasks,
  // the thread has claimed this task, and the phase does not end until the thread has added the task to done_. Only a thread that has
  // claimed a task may access the job.
  using Word = std::uint64_t;
  static constexpr int kTaskBits = 22;
  static Word phase_of(Word w) { return w >> (2 * kTaskBits); }
  static std::int64_t tasks_of(Word w) { return static_cast<std::int64_t>((w >> kTaskBits) & ((Word{1} << kTaskBits) - 1)); }
  static std::int64_t next_of(Word w) { return static_cast<std::int64_t>(w & ((Word{1} << kTaskBits) - 1)); }

  struct Waiter {
    std::condition_variable turn;
    bool called = false;
  };
  class Turn;

  void start();
  void work(int thread);
  Word take_part(int thread);        // does tasks until none is left, then returns the current word
  void wait_past(Word phase);        // waits until `phase` has ended
  void publish(std::int64_t tasks);  // starts the next phase
  std::int64_t advance(int thread);
  void fail_with(std::exception_ptr error);

  const int threads_;
  const std::int64_t pid_;
  std::int64_t spin_ns_;
  std::vector<std::thread> workers_;

  std::mutex turns_;
  std::deque<Waiter*> queue_;
  bool taken_ = false;

  Job* job_ = nullptr;
  const Cancel* cancel_ = nullptr;
  std::mutex error_lock_;
  std::exception_ptr error_;

  // Members that different threads write at different times are on separate cache lines.
  alignas(128) std::atomic<Word> word_{0};
  alignas(128) std::atomic<std::int64_t> done_{0};
  alignas(128) std::atomic<std::uint32_t> wakes_{0};
  std::atomic<std::int32_t> sleepers_{0};
  alignas(128) std::atomic<bool> stopped_{false};
  std::atomic<bool> quit_{false};
};

// Runs a job on the calling thread alone, as thread 0.
void run_alone(Job& job, const Cancel& cancel);

// Holds the team of a device. get() makes the team at the first call. In the child of a fork, get() makes a new team, because the threads
// of the parent do not exist there.
class TeamHolder {
 public:
  explicit TeamHolder(int threads) : threads_(threads) {}
  ~TeamHolder();
  TeamHolder(const TeamHolder&) = delete;
  TeamHolder& operator=(const TeamHolder&) = delete;
  int threads() const { return threads_; }
  Team& get();

 private:
  const int threads_;
  std::atomic<Team*> team_{nullptr};
};

}  // namespace pumice::cpu
