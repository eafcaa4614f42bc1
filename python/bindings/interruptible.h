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

// Runs work(cancel) without the GIL and returns when it has ended. On Python's main thread the work runs on a helper thread while this one
// wakes every 20 ms to see signals (PyErr_CheckSignals) and to call `poll` with the GIL held (progress bars; may be empty);
// a signal handler that raises (KeyboardInterrupt) requests the cancel, waits for the work to stop and lets the exception through.
// On other threads, which never see signals, the work runs in place unless there is something to poll.
// `brief`: the work should end within milliseconds, and may be begun anew: it runs in place for the 20 ms that Python may be deaf anyway,
// and only if that was not enough on the helper thread, whose waking costs a short text a tenth of its time.
void interruptible(const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}, bool brief = false);

// Waits for what another thread does: wait(ms), without the GIL, until it gives true or max_ms have passed. Signals are seen every 20 ms.
void wait_interruptibly(double max_ms, const std::function<bool(double)>& wait);

// How long a model's calls took of late: says which of them are brief.
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

// Before the first interruptible(): which thread gets the signals. With the GIL.
void find_main_thread();

}  // namespace pumice::bindings
