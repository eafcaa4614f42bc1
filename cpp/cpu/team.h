// A team of persistent threads that walks a job phase by phase. A phase is a number of tasks that the threads claim one by one; the
// next phase begins when all of them are done. A thread that holds no task is never waited for, so a thread that the system has put
// aside (more threads than cpus, a busy neighbour) costs its share of the work and no more.
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

inline constexpr std::int64_t kMaxTasks = (std::int64_t{1} << 22) - 8192;  // of one phase
inline constexpr int kMaxThreads = 4096;

class Job {
 public:
  virtual ~Job() = default;
  // Called by one thread, after the tasks of the last phase: does what is not worth sharing and returns the number of tasks of the
  // next phase; 0 ends the job.
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
  // Runs `job` on all threads; the caller is thread 0. Callers take turns, first come, first served. The first exception of a phase or
  // task ends the job and is thrown here; so does `cancel` (ErrorKind::cancelled), also while the caller waits for its turn.
  // From inside a task of any team the job runs on the calling thread alone.
  void run(Job& job, const Cancel& cancel);
  // job(index, thread) for index in [0, jobs).
  void parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int thread)>& job, const Cancel& cancel);

  bool made_in_this_process() const;

 private:
  // One word says everything a claim needs: phase (20 bits), tasks (22), next task (22). A claim is one fetch_add; whoever gets an index
  // below the number of tasks holds the phase open until it reports, so it may touch the job; nobody else may.
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
  Word take_part(int thread);            // until no task is left; returns the word of that moment
  void wait_past(Word phase);            // until the phase is another one
  void publish(std::int64_t tasks);      // the next phase
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

  // Words that different threads write at different times lie on lines of their own.
  alignas(128) std::atomic<Word> word_{0};
  alignas(128) std::atomic<std::int64_t> done_{0};
  alignas(128) std::atomic<std::uint32_t> wakes_{0};
  std::atomic<std::int32_t> sleepers_{0};
  alignas(128) std::atomic<bool> stopped_{false};
  std::atomic<bool> quit_{false};
};

// Runs a job on the calling thread alone, as thread 0.
void run_alone(Job& job, const Cancel& cancel);

// The team of a device: made at the first call, and again after a fork, where the parent's threads do not exist.
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
