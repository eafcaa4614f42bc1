// Wakes the engine thread: there may be work for it.
#pragma once

#include <memory>

#include "engine/lock_order.h"

namespace pumice::engine {

// Under the scheduler's lock.
struct WorkSignal {
  bool raised = false;  // since the engine thread looked last
  std::unique_ptr<Condition> wake = std::make_unique<Condition>();

  void raise() {
    raised = true;
    wake->notify_one();
  }
};

}  // namespace pumice::engine
