// The locks of the engine, in the order in which a thread takes them: a thread may take a lock only if every lock that it holds comes
// before it. So no circle of threads can wait for each other. Builds of tests check this at each lock (PUMICE_CHECK_LOCKS).
//
// No thread ever holds two locks of one rank, which are those of two models. When another model guesses for a step (Drafter), the step
// computes without its own scheduler's lock, and gives that model's pages back without it. Nothing that may be the last holder of another
// model is destroyed under the lock. A fork is the exception: it takes every lock there is, beginning with the objects that were made last
// (engine/at_fork.h).
//
// Some locks are not in the list, because no function of the engine is called while they are held: those of devices (cpu/, vulkan/) and of
// grammars (engine/grammar.cpp), which come after all of these, and those of EncodeQueue's callers. Model's two locks come before all
// others, because programs are built under them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#ifdef PUMICE_CHECK_LOCKS
#include <stdexcept>
#include <string>
#endif

namespace pumice::engine {

enum class LockRank : std::uint8_t {
  // ForkRegistry: each fork runs under it. An object with hooks is made and destroyed while none of the locks below is held.
  forks,
  scheduler,     // Scheduler: requests and sequences, between the steps
  encode_queue,  // EncodeQueue: calls of encoders
  run_spaces,    // RunSpaces: which spaces are lent. A step borrows one without the scheduler's lock
  pool,          // PagePool: who holds each page. The scheduler holds its own lock while it takes pages, so its lock comes before
  storage,       // PagePool: the bytes of pages. The pool grows while it does its bookkeeping, so the pool's lock comes before
  text           // TextTask: the caller's memory, while a step writes to it
};

#ifdef PUMICE_CHECK_LOCKS

// The locks that a thread holds, as one bit per rank.
class LocksHeld {
 public:
  static void take(LockRank rank) {
    if (forking) return;
    if (held >> static_cast<int>(rank) != 0)
      throw std::logic_error("locks: rank " + std::to_string(static_cast<int>(rank)) + " is taken while " + std::to_string(held) +
                             " are held (a bit for each rank)");
    held |= 1u << static_cast<int>(rank);
  }
  static void give_back(LockRank rank) noexcept {
    if (!forking) held &= ~(1u << static_cast<int>(rank));
  }
  inline static thread_local std::uint32_t held = 0;
  inline static thread_local bool forking = false;  // the thread is inside of the hooks of a fork
};

template <LockRank rank>
class OrderedMutex {
 public:
  void lock() {
    LocksHeld::take(rank);
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
    LocksHeld::give_back(rank);
  }

 private:
  std::mutex mutex_;
};
using Condition = std::condition_variable_any;
inline void forking(bool now) { LocksHeld::forking = now; }

#else

template <LockRank rank>
using OrderedMutex = std::mutex;
using Condition = std::condition_variable;
inline void forking(bool) {}

#endif

using SchedulerMutex = OrderedMutex<LockRank::scheduler>;
using SchedulerLock = std::unique_lock<SchedulerMutex>;

}  // namespace pumice::engine
