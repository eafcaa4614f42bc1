// The order of the engine's locks. A thread may take a lock only if every lock that it holds has a lower rank (LockRank). So threads cannot
// wait for each other in a circle. Test builds check the order whenever a lock is taken (PUMICE_CHECK_LOCKS).
//
// A thread never holds two locks of the same rank, because these would belong to two models, and models have no order. But a thread works
// for two models if a smaller model drafts tokens for a larger one (Drafter). Three rules then keep the thread from holding locks of both
// models. A step runs without the lock of its scheduler. The smaller model's pages are released without the lock of the larger model's
// scheduler. An object that may hold the last reference to another model is never destroyed while a scheduler's lock is held. The only
// exception is a fork, which takes all locks of all objects, newest object first (engine/at_fork.h).
//
// Some locks have no rank. A thread that holds a lock of a device (cpu/, vulkan/) or of a grammar (engine/grammar.cpp) calls no function of
// the engine. So these locks come after all locks below. The two locks of Model come before all locks below, because programs are built
// while they are held.
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
  // ForkRegistry: guards the list of AtFork objects, and is held during each fork. A thread that makes or destroys an object with an AtFork
  // member must hold none of the locks below.
  forks,
  scheduler,     // Scheduler: guards requests and sequences between steps
  encode_queue,  // EncodeQueue: guards the calls that wait or run
  run_spaces,    // RunSpaces: guards the lists of free run spaces; a step takes a run space without the scheduler's lock
  pool,          // PagePool: guards the state of pages; taken while `scheduler` is held, when a scheduler allocates pages
  storage,       // PagePool: guards the bytes of pages; taken while `pool` is held, when the storage grows
  text,          // TextTask: guards the caller's memory while a step writes to it
  encode_counts  // EncodeCounts: guards the counts; taken while `encode_queue` is held, when calls are counted
};

#ifdef PUMICE_CHECK_LOCKS

// Records the locks that the current thread holds, as one bit for each rank.
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
  inline static thread_local bool forking = false;  // true while the current thread runs the hooks of a fork
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
