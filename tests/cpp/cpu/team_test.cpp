// The team of threads must run every task exactly once, with any number of threads and callers, and despite exceptions and forks.
#include "cpu/team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/error.h"
#include "cpu/cpu_backend.h"
#include "cpu/shares.h"
#include "os/limits.h"
#include "patience.h"

namespace pumice::cpu::team_test {
namespace {

// Runs `phases` phases of `tasks` tasks. Each task checks that the phase before its own is complete.
struct Counting final : Job {
  Counting(int phases, int tasks) : phases(phases), counts(static_cast<std::size_t>(tasks)) {}
  std::int64_t next(int) override {
    for (const auto& count : counts) wrong += count.load() != phase;
    return phase++ < phases ? static_cast<std::int64_t>(counts.size()) : 0;
  }
  void task(std::int64_t index, int) override { counts[static_cast<std::size_t>(index)].fetch_add(1); }
  int phases, phase = 0;
  std::vector<std::atomic<int>> counts;
  std::atomic<int> wrong{0};
};

TEST(Team, EveryTaskOnceAndPhasesInOrder) {
  const Cancel cancel;
  for (const int threads : {1, 2, 3, 8}) {
    Team team(threads);
    for (const int tasks : {1, 2, 7, 300}) {
      Counting job(50, tasks);
      team.run(job, cancel);
      EXPECT_EQ(job.wrong.load(), 0) << threads << " threads, " << tasks << " tasks";
      for (const auto& count : job.counts) EXPECT_EQ(count.load(), 50);
    }
  }
}

TEST(Shares, AThreadTakesItsRunFromTheFrontAndOthersFromTheBack) {
  Shares shares(3);
  shares.deal(8);  // the threads' shares are [0, 2), [2, 5) and [5, 8)
  EXPECT_EQ(shares.take(1), 2);
  EXPECT_EQ(shares.take(1), 3);
  EXPECT_EQ(shares.take(0), 0);
  EXPECT_EQ(shares.take(1), 4);
  EXPECT_EQ(shares.take(1), 7) << "its own are done: the next thread's last";
  EXPECT_EQ(shares.take(2), 5);
  EXPECT_EQ(shares.take(0), 1);
  EXPECT_EQ(shares.take(0), 6) << "nobody has left anything but this";
  EXPECT_EQ(shares.take(0), -1);
  shares.deal(1);  // the only task is in the share of thread 2, where thread 0 must find it
  EXPECT_EQ(shares.take(0), 0);
}

// In whatever order threads claim tasks, each task must be claimed exactly once per phase.
TEST(Shares, EveryTaskOnceInEveryPhase) {
  struct Shared final : Job {
    explicit Shared(int threads, int tasks) : shares(threads), counts(static_cast<std::size_t>(tasks)) {}
    std::int64_t next(int) override {
      if (phase++ == 200) return 0;
      shares.deal(static_cast<std::int64_t>(counts.size()));
      return static_cast<std::int64_t>(counts.size());
    }
    void task(std::int64_t, int thread) override {
      const std::int64_t index = shares.take(thread);
      if (index >= 0) counts[static_cast<std::size_t>(index)].fetch_add(1);
    }
    Shares shares;
    std::vector<std::atomic<int>> counts;
    int phase = 0;
  };
  const Cancel cancel;
  for (const int threads : {1, 2, 3, 8}) {
    Team team(threads);
    for (const int tasks : {1, 2, 7, 100}) {
      Shared job(threads, tasks);
      team.run(job, cancel);
      for (const auto& count : job.counts) EXPECT_EQ(count.load(), 200) << threads << " threads, " << tasks << " tasks";
    }
  }
}

// The team has more threads than there are processors. A phase must not wait for a thread that the system is not running at the moment:
// 20,000 phases would then take minutes.
TEST(Team, DoesNotCollapseWhenOversubscribed) {
  const Cancel cancel;
  Team team(8 * os::allowed_cpus());
  Counting warm(100, 4), job(20'000, 4);
  team.run(warm, cancel);
  const patience::Watch watch;
  team.run(job, cancel);
  EXPECT_EQ(job.wrong.load(), 0);
  std::cout << "  20,000 phases: " << watch.process() << " s of processor time, " << watch.wall() << " s\n";
  EXPECT_LT(watch.process(), 1.0) << "50 us a phase";
  if (patience::asserts_walls()) {
    EXPECT_LT(watch.wall(), 20.0);
  }
}

TEST(Team, ManyCallersAtOnceTakeTurns) {
  const Cancel cancel;
  Team team(4);
  std::atomic<int> wrong{0}, running{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 16; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        Counting job(10, 5);
        team.run(job, cancel);
        wrong += job.wrong.load() != 0;
        std::atomic<std::int64_t> sum{0};
        team.parallel(
            100,
            [&](std::int64_t index, int thread) {
              if (index == 0 && running.fetch_add(1) != 0) wrong += 1;
              if (thread < 0 || thread >= 4) wrong += 1;
              sum += index;
              if (index == 0) running.fetch_sub(1);
            },
            cancel);
        wrong += sum.load() != 4950;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Team, FirstComeFirstServed) {
  const Cancel cancel;
  Team team(2);
  std::atomic<bool> hold{true}, held{false};
  std::vector<int> order;  // written only by the caller whose turn it is
  std::thread holder([&] {
    team.parallel(
        1,
        [&](std::int64_t, int) {
          held = true;
          while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        cancel);
  });
  while (!held) std::this_thread::yield();
  std::vector<std::thread> callers;
  for (int c = 0; c < 5; ++c) {
    std::promise<pid_t> thread;
    callers.emplace_back([&, c] {
      thread.set_value(::gettid());
      team.parallel(1, [&](std::int64_t, int) { order.push_back(c); }, cancel);
    });
    EXPECT_TRUE(patience::waits_in_a_loop(thread.get_future().get()));
  }
  hold = false;
  holder.join();
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Team, ExceptionReachesTheCallerAndTheTeamGoesOn) {
  const Cancel cancel;
  Team team(4);
  for (int round = 0; round < 50; ++round) {
    try {
      team.parallel(
          64,
          [&](std::int64_t i, int) {
            if (i == 17) fail(ErrorKind::numeric, "job ", i);
          },
          cancel);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numeric);
      EXPECT_STREQ(error.what(), "job 17");
    }
    struct Throws final : Job {
      int phase = 0;
      std::int64_t next(int) override { return ++phase == 3 ? throw std::runtime_error("between phases") : 4; }
      void task(std::int64_t, int) override {}
    } throws;
    EXPECT_THROW(team.run(throws, cancel), std::runtime_error);
    Counting job(3, 9);
    team.run(job, cancel);
    EXPECT_EQ(job.wrong.load(), 0);
  }
}

// A thread looks at the cancel flag before each task, so it begins at most one that sees the flag.
TEST(Team, CancelIsSeenBeforeEachTask) {
  Team team(4);
  Cancel cancel;
  std::atomic<std::int64_t> tasks{0}, late{0};
  try {
    team.parallel(
        1'000'000'000,
        [&](std::int64_t, int) {
          late += cancel.requested();
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          if (++tasks == 500) cancel.request();
        },
        cancel);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  EXPECT_LE(late, 4);
}

TEST(Team, CancelEndsTheWaitForATurn) {
  const Cancel never;
  Team team(2);
  std::atomic<bool> hold{true}, held{false};
  std::thread holder([&] {
    team.parallel(
        1,
        [&](std::int64_t, int) {
          held = true;
          while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        never);
  });
  while (!held) std::this_thread::yield();
  Cancel cancel;
  std::atomic<bool> left{false};
  std::thread waiter([&] {
    EXPECT_THROW(team.parallel(1, [](std::int64_t, int) {}, cancel), Error);
    left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cancel.request();
  EXPECT_TRUE(patience::wait_until([&] { return left.load(); })) << "the waiter still waits";
  hold = false;
  waiter.join();
  holder.join();
  Counting job(3, 9);
  team.run(job, never);
  EXPECT_EQ(job.wrong.load(), 0);
}

TEST(Team, AJobInsideAJobRunsAlone) {
  const Cancel cancel;
  Team team(3);
  std::atomic<int> wrong{0};
  team.parallel(
      12,
      [&](std::int64_t, int) {
        Counting job(4, 6);
        team.run(job, cancel);
        wrong += job.wrong.load();
      },
      cancel);
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Team, ManyTeamsStartAndEnd) {
  const Cancel cancel;
  for (int i = 0; i < 100; ++i) {
    Team team(3);
    if (i % 3 == 0) continue;  // a team that is never used starts no threads
    Counting job(2, 5);
    team.run(job, cancel);
    if (i % 3 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the threads are asleep when the team ends
    EXPECT_EQ(job.wrong.load(), 0);
  }
}

TEST(Team, WorksInTheChildOfAFork) {
  const Cancel cancel;
  TeamHolder holder(3);
  Counting before(10, 9);
  holder.get().run(before, cancel);
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Counting job(100, 9);
      holder.get().run(job, cancel);
      ::_exit(job.wrong.load() == 0 && holder.get().made_in_this_process() ? 42 : 1);
    }
    EXPECT_EQ(patience::exit_code(child), 42);
  }
  Counting after(10, 9);
  holder.get().run(after, cancel);
  EXPECT_EQ(after.wrong.load(), 0);
}

TEST(Team, ThreadsAreNamedAndLeaveSignalsAlone) {
  const Cancel cancel;
  Team team(2);
  std::atomic<int> seen{0};
  for (int round = 0; round < 200 && seen == 0; ++round) {
    team.parallel(
        2,
        [&](std::int64_t, int thread) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          if (thread == 0) return;
          char name[16] = {};
          pthread_getname_np(pthread_self(), name, sizeof name);
          sigset_t blocked;
          pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
          EXPECT_STREQ(name, "pumice-1");
          EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
          ++seen;
        },
        cancel);
  }
  EXPECT_GT(seen.load(), 0);
}

// The control register of this thread's float operations, and the bit that flushes denormals to zero.
#if defined(__x86_64__)
constexpr std::uint64_t kFlush = 0x8000;
std::uint64_t float_control() { return _mm_getcsr(); }
void set_float_control(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kFlush = 1 << 24;
std::uint64_t float_control() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_float_control(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#endif

#if defined(__x86_64__) || defined(__aarch64__)
TEST(Team, TheCallersFloatModeIsNotTheTeams) {
  const Cancel cancel;
  const auto product = [] {
    volatile float small = 1e-38f;
    return small * 0.01f;
  };
  const std::uint64_t before = float_control();
  set_float_control(before | kFlush);
  const bool flushes = product() == 0.0f;  // otherwise this test would show nothing
  Team team(2);
  std::atomic<int> flushed{0};
  team.parallel(50, [&](std::int64_t, int) { flushed += product() == 0.0f; }, cancel);
  const std::uint64_t after = float_control();
  set_float_control(before);
  EXPECT_TRUE(flushes);
  EXPECT_EQ(flushed.load(), 0);
  EXPECT_EQ(after & kFlush, kFlush);
}
#endif

}  // namespace
}  // namespace pumice::cpu::team_test
