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
    std::int64_t waiting = 0;  // number of calls that have not begun to run, because other calls run
    std::int64_t texts = 0;    // number of texts computed so far
    std::int64_t tokens = 0;   // number of tokens computed so far
    std::int64_t runs = 0;     // number of micro-batches computed so far
    double busy_seconds = 0;   // time during which at least one Run existed
  };

  EncodeCounts();
  EncodeCounts(const EncodeCounts&) = delete;
  EncodeCounts& operator=(const EncodeCounts&) = delete;

  Stats stats() const;
  void wait(std::int64_t calls);  // adds `calls`, which may be negative, to Stats::waiting
  void done(std::int64_t texts, std::int64_t tokens, std::int64_t runs);

  class Run;
  // Counts calls as waiting, until the first Run of this Turn begins or the Turn is destroyed. That Run also calls Cancel::begin() for each
  // call.
  class Turn {
   public:
    Turn(EncodeCounts& counts, const Cancel& call);
    Turn(EncodeCounts& counts, std::vector<const Cancel*> waiting);  // for calls that EncodeCounts::wait() has counted already
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend class EncodeCounts::Run;
    EncodeCounts& counts_;
    std::vector<const Cancel*> waiting_;
  };

  // Exists while the model runs for the calls of `turn`, which then no longer count as waiting. The lifetime of a Run counts as busy time.
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
  Stats stats_;                   // while a Run exists, busy_seconds lacks the time since busy_since_
  std::int64_t runs_ = 0;         // number of Run objects that exist
  Clock::time_point busy_since_;  // when runs_ last rose from 0 to 1
  const AtFork at_fork_;
};

}  // namespace pumice::engine
