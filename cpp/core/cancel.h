// A flag that stops work: set by whoever waits (Ctrl-C, a closed stream), read by workers at every piece of work.
#pragma once

#include <atomic>

#include "core/error.h"

namespace pumice {

class Cancel {
 public:
  void request() noexcept { flag_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return flag_.load(std::memory_order_relaxed); }
  void check() const {
    if (requested()) fail(ErrorKind::cancelled, "cancelled");
  }

 private:
  std::atomic<bool> flag_{false};
};

}  // namespace pumice
