// The locks of the engine, in the order in which a thread takes them: a thread takes a lock only while all that it holds come before it.
// So no circle of threads can wait for each other. Builds of tests check it at each lock (PUMICE_CHECK_LOCKS).
//
// Two locks of one rank, those of two models, are never held together. A step that another model guesses for (Drafter) computes, and gives
// that model's pages back, without its scheduler's lock; and nothing that may be the last holder of another model is destroyed under it.
// A fork is the exception: it takes every lock there is, those of the objects that were made last first (engine/at_fork.h).
//
// Not in the list, as nothing of the engine is called under them: the locks of devices (cpu/, vulkan/) and of grammars
// (engine/grammar.cpp), which come after all of these, and EncodeQueue's callers. Model's two locks come before all: programs are built
// under them.
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
  forks,         // ForkRegistry: each fork runs under it. An object with hooks is made and destroyed under no lock below
  scheduler,     // Scheduler: requests and sequences, between the steps
  encode_queue,  // EncodeQueue: calls of encoders
  run_spaces,    // RunSpaces: which spaces are lent. A step lends one without the scheduler's lock
  pool,          // PagePool: which page is whose. The scheduler decides and takes pages in one go, so its lock comes before
  storage,       // PagePool: the bytes of pages. The pool grows in the middle of its bookkeeping, so its lock comes before
  text           // TextTask: the memory of a caller, while a step writes to it
};

#ifdef PUMICE_CHECK_LOCKS

// What a thread holds, a bit for each rank.
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
