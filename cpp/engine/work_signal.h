// A signal that wakes the engine thread when there may be work.
#pragma once

#include <memory>

#include "engine/lock_order.h"

namespace pumice::engine {

// raise() wakes the engine thread. The scheduler's lock guards all members.
struct WorkSignal {
  bool raised = false;  // true if raise() was called since the engine thread last looked for work
  std::unique_ptr<Condition> wake = std::make_unique<Condition>();

  void raise() {
    raised = true;
    wake->notify_one();
  }
};

}  // namespace pumice::engine
