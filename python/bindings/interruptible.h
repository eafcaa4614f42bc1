// Long work under Python: the GIL is released, and Ctrl-C ends the work within 100 ms.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>

#include "core/cancel.h"

namespace pumice::bindings {

// Runs work(cancel) without the GIL and returns when it has ended.
// - On Python's main thread the work runs on a helper thread. The main thread wakes every 20 ms to see signals (PyErr_CheckSignals) and to
//   call `poll` with the GIL held (progress bars; may be empty). When a signal handler raises (KeyboardInterrupt), the main thread sets
//   the cancel, waits until the work has stopped and lets the exception through.
// - Other threads never see signals: there the work runs in place, unless there is a `poll`.
// - `brief`: the work should end within milliseconds and may be started again. It first runs in place for 20 ms, as long as a signal may
//   wait anyway. If that is not enough, it starts again on the helper thread. Waking that thread costs a tenth of a short text's time.
void interruptible(const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}, bool brief = false);

// Waits for another thread: calls wait(ms) without the GIL until it returns true or max_ms have passed. Signals are seen every 20 ms.
void wait_interruptibly(double max_ms, const std::function<bool(double)>& wait);

// Measures how long a model's calls take, to decide which calls are brief.
class CallTimes {
 public:
  bool brief(std::size_t tokens) const {
    return static_cast<double>(tokens) * seconds_per_token_.load(std::memory_order_relaxed) <= kBrief;
  }
  void saw(std::size_t tokens, Cancel::Clock::duration time) {
    const double seconds = std::chrono::duration<double>(time).count();
    seconds_per_token_.store(seconds / static_cast<double>(std::max<std::size_t>(1, tokens)), std::memory_order_relaxed);
  }

 private:
  static constexpr double kBrief = 0.01;  // seconds
  std::atomic<double> seconds_per_token_{std::numeric_limits<double>::infinity()};
};

// Finds the thread that gets the signals. Called before the first interruptible(), with the GIL.
void find_main_thread();

}  // namespace pumice::bindings
