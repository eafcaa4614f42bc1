// Counts what the encode calls of a model compute, for stats(). All runtimes of the model share one object.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/cancel.h"
#include "engine/at_fork.h"
#include "engine/lock_order.h"

namespace pumice::engine {

class EncodeCounts {
 public:
  struct Stats {
    std::int64_t waiting = 0;  // calls that have not begun to run, because other calls run
    std::int64_t texts = 0;    // texts computed so far
    std::int64_t tokens = 0;   // tokens computed so far
    std::int64_t runs = 0;     // micro-batches computed so far
    double busy_seconds = 0;   // time during which at least one Run existed
  };

  EncodeCounts();
  EncodeCounts(const EncodeCounts&) = delete;
  EncodeCounts& operator=(const EncodeCounts&) = delete;

  Stats stats() const;
  void wait(std::int64_t calls);  // adds calls to the waiting ones, or takes them away if the number is negative
  void done(std::int64_t texts, std::int64_t tokens, std::int64_t runs);

  class Run;
  // Counts calls as waiting until its first Run begins, or until it is destroyed. The Run also begins the Cancel of each call.
  class Turn {
   public:
    Turn(EncodeCounts& counts, const Cancel& call);
    Turn(EncodeCounts& counts, std::vector<const Cancel*> waiting);  // wait() has counted these calls already
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend class EncodeCounts::Run;
    EncodeCounts& counts_;
    std::vector<const Cancel*> waiting_;
  };

  // A run of the model for the calls of `turn`, which no longer wait. Its lifetime counts as busy.
  class Run {
   public:
    explicit Run(Turn& turn);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    EncodeCounts& counts_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  double busy_until(Clock::time_point now) const;

  mutable OrderedMutex<LockRank::encode_counts> mutex_;
  Stats stats_;            // busy_seconds without the time since busy_since_
  std::int64_t runs_ = 0;  // number of Run objects
  Clock::time_point busy_since_;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
