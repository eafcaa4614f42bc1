#include "engine/at_fork.h"

#include <pthread.h>
#include <unistd.h>

#include <list>

#include "core/error.h"
#include "engine/lock_order.h"

namespace pumice::engine {

// The list of all AtFork objects. It is never destroyed, because an object with an AtFork member may outlive all static objects.
class ForkRegistry {
 public:
  static ForkRegistry& get() {
    static auto& registry = *new ForkRegistry;
    return registry;
  }
  void add(AtFork* at_fork) {
    const std::lock_guard lock(mutex_);
    all_.push_back(at_fork);
  }
  void remove(AtFork* at_fork) {
    const std::lock_guard lock(mutex_);
    all_.remove(at_fork);
  }

 private:
  ForkRegistry() {
    ::pthread_atfork([] { get().before(); }, [] { get().after(&AtFork::Hooks::in_parent); }, [] { get().after(&AtFork::Hooks::in_child); });
  }
  void before() {
    mutex_.lock();
    forking(true);
    // An object calls older objects while it holds its own lock, so its lock must be taken before theirs. Therefore the hooks of newer
    // objects run first.
    for (auto each = all_.rbegin(); each != all_.rend(); ++each) (*each)->hooks_.before();
  }
  void after(std::function<void()> AtFork::Hooks::* hook) {
    for (const AtFork* each : all_) (each->hooks_.*hook)();
    forking(false);
    mutex_.unlock();
  }

  OrderedMutex<LockRank::forks> mutex_;
  std::list<AtFork*> all_;
};

AtFork::AtFork(Hooks hooks) : hooks_(std::move(hooks)) { ForkRegistry::get().add(this); }

AtFork::~AtFork() { ForkRegistry::get().remove(this); }

void ProcessLock::lock() {
  const pid_t me = ::getpid();
  for (pid_t holder = 0; !holder_.compare_exchange_strong(holder, me, std::memory_order_acquire); holder = 0) {
    if (holder != me)
      fail(ErrorKind::forked_device, "another thread was preparing this model when the process forked; load the model again in the child");
    holder_.wait(holder);
  }
}

void ProcessLock::unlock() noexcept {
  holder_.store(0, std::memory_order_release);
  holder_.notify_one();
}

}  // namespace pumice::engine
