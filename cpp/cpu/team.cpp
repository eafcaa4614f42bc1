#include "cpu/team.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "cpu/processor.h"
#include "os/limits.h"
#include "os/threads.h"

namespace pumice::cpu {
namespace {

using Clock = std::chrono::steady_clock;

thread_local bool inside_task = false;

class Inside {
 public:
  Inside() : before_(std::exchange(inside_task, true)) {}
  ~Inside() { inside_task = before_; }

 private:
  bool before_;
  FloatMode mode_;
};

}  // namespace

void run_alone(Job& job, const Cancel& cancel) {
  const Inside inside;
  for (;;) {
    cancel.check();
    const std::int64_t tasks = job.next(0);
    if (tasks == 0) return;
    for (std::int64_t i = 0; i < tasks; ++i) {
      cancel.check();
      job.task(i, 0);
    }
  }
}

// ---------------------------------------------------------------- turns
class Team::Turn {
 public:
  Turn(Team& team, const Cancel& cancel) : team_(team) {
    std::unique_lock lock(team.turns_);
    if (!team.taken_ && team.queue_.empty()) {
      team.taken_ = true;
      return;
    }
    Waiter me;
    team.queue_.push_back(&me);
    while (!me.called) {
      me.turn.wait_for(lock, std::chrono::milliseconds(10));
      if (!me.called && cancel.requested()) {
        team.queue_.erase(std::find(team.queue_.begin(), team.queue_.end(), &me));
        cancel.check();
      }
    }
  }
  ~Turn() {
    const std::lock_guard lock(team_.turns_);
    if (team_.queue_.empty()) {
      team_.taken_ = false;
      return;
    }
    Waiter* next = team_.queue_.front();  // taken_ stays true, because the turn passes to the next waiter
    team_.queue_.pop_front();
    next->called = true;
    next->turn.notify_one();  // under the lock, because `next` may be destroyed once its thread sees `called`
  }
  Turn(const Turn&) = delete;

 private:
  Team& team_;
};

// ---------------------------------------------------------------- threads
Team::Team(int threads) : threads_(std::clamp(threads, 1, kMaxThreads)), pid_(::getpid()) {
  // Threads that wait spin for spin_ns_ before they sleep. In measurements, a step took 1 us longer if threads slept after 100 us than if
  // they never slept, and 60 us longer if they slept at once. If there are more threads than processors, a spinning thread may occupy the
  // processor that another thread needs to finish its tasks. Threads then spin for only 2 us.
  spin_ns_ = threads_ <= os::allowed_cpus() ? 100'000 : 2'000;
}

Team::~Team() {
  quit_.store(true);
  publish(0);
  for (std::thread& worker : workers_) worker.join();
}

bool Team::made_in_this_process() const { return pid_ == ::getpid(); }

void Team::start() {
  if (static_cast<int>(workers_.size()) == threads_ - 1) return;
  sigset_t all, before;
  sigfillset(&all);
  // Worker threads block all signals, so that the program's own threads handle them.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    workers_.reserve(static_cast<std::size_t>(threads_ - 1));
    while (static_cast<int>(workers_.size()) < threads_ - 1) {
      const int thread = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    // Address space of a thread: its stack, and the heap that glibc reserves for it.
    constexpr std::uint64_t kThreadBytes = std::uint64_t{72} << 20;
    if (const auto left = os::address_space_left(); left && *left < kThreadBytes) {
      fail(ErrorKind::out_of_memory, "cpu: thread ", workers_.size() + 1, " of ", threads_, " cannot be started: it takes up to ",
           kThreadBytes >> 20, " MiB of address space, and the limit (ulimit -v) leaves ", *left >> 20, " MiB");
    }
    fail(ErrorKind::device, "cpu: thread ", workers_.size() + 1, " of ", threads_, " cannot be started (", error.what(),
         "); ask for fewer threads or raise the limit of processes");
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Team::work(int thread) {
  os::name_this_thread(("pumice-" + std::to_string(thread)).c_str());
  os::expect_work_on_this_thread();
  const Inside inside;
  while (!quit_.load()) wait_past(phase_of(take_part(thread)));
}

void Team::fail_with(std::exception_ptr error) {
  const std::lock_guard lock(error_lock_);
  if (!error_) error_ = std::move(error);
  stopped_.store(true, std::memory_order_relaxed);
}

std::int64_t Team::advance(int thread) {
  if (stopped_.load(std::memory_order_relaxed)) return 0;
  try {
    cancel_->check();
    const std::int64_t tasks = job_->next(thread);
    if (tasks <= kMaxTasks) return tasks;
    fail(ErrorKind::invalid_argument, "cpu: a step of ", tasks, " tasks is more than ", kMaxTasks, "; use a smaller batch");
  } catch (...) {
    fail_with(std::current_exception());
    return 0;
  }
}

void Team::publish(std::int64_t tasks) {
  const Word next = phase_of(word_.load(std::memory_order_relaxed)) + 1;
  // This store and the load of sleepers_ are sequentially consistent. A thread that begins to sleep therefore either sees the new phase, or
  // has already incremented sleepers_ and is woken here.
  word_.store(next << (2 * kTaskBits) | static_cast<Word>(tasks) << kTaskBits);
  if (sleepers_.load() > 0) {
    wakes_.fetch_add(1);
    wakes_.notify_all();
  }
}

Team::Word Team::take_part(int thread) {
  std::int64_t mine = 0;  // number of tasks of this phase that this thread has done but not yet added to done_
  for (;;) {
    Word word = word_.load(std::memory_order_acquire);
    if (next_of(word) < tasks_of(word)) word = word_.fetch_add(1, std::memory_order_acq_rel);
    const std::int64_t index = next_of(word), tasks = tasks_of(word);
    if (index < tasks) {
      if (!stopped_.load(std::memory_order_relaxed)) {
        try {
          cancel_->check();
          job_->task(index, thread);
        } catch (...) {
          fail_with(std::current_exception());
        }
      }
      ++mine;
      continue;
    }
    if (mine == 0 || done_.fetch_add(mine, std::memory_order_acq_rel) + mine < tasks) return word;
    // The thread that adds the last tasks to done_ prepares the next phase.
    mine = 0;
    done_.store(0, std::memory_order_relaxed);
    publish(advance(thread));
  }
}

void Team::wait_past(Word phase) {
  const auto changed = [&] { return phase_of(word_.load()) != phase || quit_.load(std::memory_order_relaxed); };
  const Clock::time_point begin = Clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (changed()) return;
      pause_briefly();
    }
  } while ((Clock::now() - begin).count() < spin_ns_);
  sleepers_.fetch_add(1);
  for (;;) {
    const std::uint32_t wakes = wakes_.load();
    if (changed()) break;
    wakes_.wait(wakes);
  }
  sleepers_.fetch_sub(1);
}

void Team::run(Job& job, const Cancel& cancel) {
  if (inside_task) return run_alone(job, cancel);
  const Turn turn(*this, cancel);
  if (threads_ == 1) return run_alone(job, cancel);
  start();
  {
    const Inside inside;
    job_ = &job;
    cancel_ = &cancel;
    stopped_.store(false, std::memory_order_relaxed);
    publish(advance(0));
    for (;;) {
      const Word word = take_part(0);
      // Only the end of this job can have set the number of tasks to 0, because no other job runs while the caller holds the turn.
      if (tasks_of(word) == 0) break;
      wait_past(phase_of(word));
    }
    job_ = nullptr;
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::parallel(std::int64_t jobs, const std::function<void(std::int64_t, int)>& job, const Cancel& cancel) {
  // Each thread gets one task of the team, and each task claims jobs until none is left. The number of jobs may therefore exceed kMaxTasks.
  struct Parallel final : Job {
    std::int64_t jobs = 0;
    int threads = 1;
    const std::function<void(std::int64_t, int)>* job = nullptr;
    const Cancel* cancel = nullptr;
    std::atomic<std::int64_t> claimed{0};
    std::atomic<bool> failed{false};
    bool begun = false;
    std::int64_t next(int) override { return std::exchange(begun, true) ? 0 : std::min<std::int64_t>(jobs, threads); }
    void task(std::int64_t, int thread) override {
      try {
        for (std::int64_t i; !failed.load(std::memory_order_relaxed) && (i = claimed.fetch_add(1)) < jobs;) {
          cancel->check();
          (*job)(i, thread);
        }
      } catch (...) {
        failed.store(true, std::memory_order_relaxed);
        throw;
      }
    }
  };
  if (jobs <= 0) return;
  Parallel parallel;
  parallel.jobs = jobs;
  parallel.threads = threads_;
  parallel.job = &job;
  parallel.cancel = &cancel;
  run(parallel, cancel);
}

// ---------------------------------------------------------------- after fork
TeamHolder::~TeamHolder() {
  Team* team = team_.load();
  // If the parent process made the team, the team is leaked. Its threads do not exist in this process and cannot be joined.
  if (team && team->made_in_this_process()) delete team;
}

Team& TeamHolder::get() {
  Team* team = team_.load(std::memory_order_acquire);
  if (team && team->made_in_this_process()) return *team;
  // This function takes no lock, because another thread might have held the lock at the fork. The team's threads start at its first job.
  auto made = std::make_unique<Team>(threads_);
  if (team_.compare_exchange_strong(team, made.get())) return *made.release();
  return *team;
}

}  // namespace pumice::cpu
