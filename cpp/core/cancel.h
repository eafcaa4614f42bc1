// Stops work when a flag has been set or a deadline has passed. The thread that waits for the work sets the flag (on Ctrl-C, or when a
// stream is closed). Workers check the flag and the deadline before each task. begun() informs the waiting thread whether the work has
// begun or still waits for other work to end.
#pragma once

#include <atomic>
#include <chrono>

#include "core/error.h"

namespace pumice {

class Cancel {
 public:
  using Clock = std::chrono::steady_clock;

  Cancel() = default;
  explicit Cancel(Clock::time_point deadline) : deadline_(deadline) {}
  void request() noexcept { flag_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return flag_.load(std::memory_order_relaxed) || (deadline_ != kNever && Clock::now() >= deadline_); }
  void check() const {
    if (requested()) fail(ErrorKind::cancelled, "cancelled");
  }
  // This function is const, because the work has only a const reference to the Cancel.
  void begin() const noexcept { begun_.store(true, std::memory_order_relaxed); }
  bool begun() const noexcept { return begun_.load(std::memory_order_relaxed); }

 private:
  static constexpr Clock::time_point kNever = Clock::time_point::max();
  const Clock::time_point deadline_ = kNever;
  std::atomic<bool> flag_{false};
  mutable std::atomic<bool> begun_{false};
};

}  // namespace pumice
