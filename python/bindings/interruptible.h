// Runs long work that was called from Python. The GIL is released meanwhile, and Ctrl-C ends the work within 100 ms.
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

// Runs work(cancel) without the GIL and returns when the work has ended.
// - On Python's main thread: the work runs on a helper thread. The main thread wakes every 20 ms, runs the handlers of pending signals
//   (PyErr_CheckSignals), and calls `poll` with the GIL held. `poll` updates progress bars and may be empty. If a handler raises an
//   exception (KeyboardInterrupt), the main thread requests the cancel, waits until the work has stopped, and rethrows the exception.
// - On any other thread: signal handlers never run there. So the work runs on the calling thread, unless there is a `poll` to call.
// - `brief` is true if the work should end within milliseconds and may be started twice. On the main thread and without `poll`, such work
//   first runs on the calling thread, which saves the time to wake the helper thread: a tenth of the time that a short text takes. If the
//   work has not ended after 20 ms, it is cancelled and started again on the helper thread. So signals are delayed by at most 20 ms.
void interruptible(const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}, bool brief = false);

// Waits for another thread: calls wait(ms) without the GIL until it returns true, or until max_ms milliseconds have passed. On Python's
// main thread, signal handlers run every 20 ms meanwhile.
void wait_interruptibly(double max_ms, const std::function<bool(double)>& wait);

// Remembers how long a model's calls take per token, to predict which calls are brief (see interruptible()).
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
  static constexpr double kBrief = 0.01;  // maximum predicted time of a brief call, in seconds
  std::atomic<double> seconds_per_token_{std::numeric_limits<double>::infinity()};
};

// Stores which thread is Python's main thread, where signal handlers run. Must be called with the GIL held, before the first call of
// interruptible().
void find_main_thread();

}  // namespace pumice::bindings
