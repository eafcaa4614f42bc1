// Wakes the engine thread: there may be work for it.
#pragma once

#include <condition_variable>
#include <memory>

namespace pumice::engine {

// Under the scheduler's lock.
struct WorkSignal {
  bool raised = false;  // since the engine thread looked last
  std::unique_ptr<std::condition_variable> wake = std::make_unique<std::condition_variable>();

  void raise() {
    raised = true;
    wake->notify_one();
  }
};

}  // namespace pumice::engine
