// A team of persistent threads that walks a job phase by phase. A phase is a number of tasks that the threads claim one by one; the
// next phase begins when all of them are done. No thread waits for one that holds no task, so a thread that the system does
// not schedule (more threads than processors, another busy process) costs only its share of the work.
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
  // Called by one thread after all tasks of a phase. Does work that is too small to share, and returns the number of tasks of the next
  // phase; 0 ends the job.
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
  // Runs `job` on all threads; the caller is thread 0. Callers take turns in the order of their calls. The first exception of a phase or
  // task ends the job and is thrown here. A requested `cancel` ends it too (ErrorKind::cancelled), also while the caller waits for its
  // turn. Called from inside a task of any team, the job runs on the calling thread alone.
  void run(Job& job, const Cancel& cancel);
  // Calls job(index, thread) for each index in [0, jobs).
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int thread)>& job, const Cancel& cancel);

  bool made_in_this_process() const;

 private:
  // One word has all that a claim needs: phase (20 bits), tasks (22), next task (22). A claim is one fetch_add. A thread whose claim gives
  // an index below the number of tasks keeps the phase open until it reports; only such threads may access the job.
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
  Word take_part(int thread);        // does tasks until none is left; returns the word at that moment
  void wait_past(Word phase);        // waits until the phase is another one
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

  // Words that different threads write at different times are on separate cache lines.
  alignas(128) std::atomic<Word> word_{0};
  alignas(128) std::atomic<std::int64_t> done_{0};
  alignas(128) std::atomic<std::uint32_t> wakes_{0};
  std::atomic<std::int32_t> sleepers_{0};
  alignas(128) std::atomic<bool> stopped_{false};
  std::atomic<bool> quit_{false};
};

// Runs a job on the calling thread alone, as thread 0.
void run_alone(Job& job, const Cancel& cancel);

// The team of a device. It is made at the first call, and again in the child of a fork, where the parent's threads do not exist.
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
