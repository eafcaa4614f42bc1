// In builds with tests, each locking of a mutex of the engine checks the order of locks. Locking in the wrong order must throw.
#include "engine/lock_order.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace pumice::engine {
namespace {

TEST(LockOrder, ALockBeforeOneThatIsHeldIsAnError) {
  SchedulerMutex scheduler, other;
  OrderedMutex<LockRank::pool> pool;
  OrderedMutex<LockRank::storage> storage;
  {
    const std::lock_guard first(scheduler);
    const std::lock_guard second(pool);
    const std::lock_guard third(storage);
  }
  const std::lock_guard held(pool);
  EXPECT_THROW(scheduler.lock(), std::logic_error);
  EXPECT_THROW(pool.lock(), std::logic_error) << "it would wait for itself";
  {
    const std::lock_guard later(storage);
  }
  std::thread([&] { const std::lock_guard free(scheduler); }).join();
}

TEST(LockOrder, TwoOfOneRankAreNotHeldTogether) {
  SchedulerMutex one, two;
  const std::lock_guard held(one);
  EXPECT_THROW(two.lock(), std::logic_error);
}

TEST(LockOrder, AWaitGivesTheLockBack) {
  SchedulerMutex scheduler;
  OrderedMutex<LockRank::pool> pool;
  Condition told;
  SchedulerLock lock(scheduler);
  told.wait_for(lock, std::chrono::milliseconds(1), [] { return false; });
  EXPECT_THROW(scheduler.lock(), std::logic_error);
  lock.unlock();
  const std::lock_guard free(scheduler);
  const std::lock_guard after(pool);
}

}  // namespace
}  // namespace pumice::engine
