// Reports the progress of long work to a Python function, for example to a progress bar.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "gil.h"

namespace pumice::bindings {

// Counts finished work. Worker threads call set(). poll() returns a function that calls `callback` if the count has changed, but at most
// ten times a second. interruptible() runs this function in the calling thread with the GIL held. finish() calls `callback` with the last
// count.
class Counter {
 public:
  explicit Counter(std::optional<py::function> callback) : callback_(std::move(callback)) {}
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::function<void()> poll(std::function<py::tuple(std::uint64_t)> arguments) {
    if (!callback_) return {};
    return [this, arguments = std::move(arguments)] {
      const auto now = std::chrono::steady_clock::now();
      const std::uint64_t value = value_.load(std::memory_order_relaxed);
      if (value == shown_ || now - last_ < std::chrono::milliseconds(100)) return;
      shown_ = value;
      last_ = now;
      call(*callback_, arguments(value));
    };
  }
  void finish(std::uint64_t value, const std::function<py::tuple(std::uint64_t)>& arguments) {
    if (callback_ && shown_ != value) call(*callback_, arguments(value));
  }

 private:
  std::optional<py::function> callback_;
  std::atomic<std::uint64_t> value_{0};
  std::uint64_t shown_ = 0;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace pumice::bindings
