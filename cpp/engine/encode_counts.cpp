#include "engine/encode_counts.h"

#include <mutex>
#include <utility>

namespace pumice::engine {

EncodeCounts::EncodeCounts()
    : at_fork_({.before = [this] { mutex_.lock(); },
                .in_parent = [this] { mutex_.unlock(); },
                .in_child = [this] {  // resets the counts of waiting and running calls, because these belong to threads of the parent
                  stats_.waiting = runs_ = 0;
                  mutex_.unlock();
                }}) {}

double EncodeCounts::busy_until(Clock::time_point now) const {
  return stats_.busy_seconds + (runs_ > 0 ? std::chrono::duration<double>(now - busy_since_).count() : 0);
}

EncodeCounts::Stats EncodeCounts::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.busy_seconds = busy_until(Clock::now());
  return stats;
}

void EncodeCounts::wait(std::int64_t calls) {
  const std::lock_guard lock(mutex_);
  stats_.waiting += calls;
}

void EncodeCounts::done(std::int64_t texts, std::int64_t tokens, std::int64_t runs) {
  const std::lock_guard lock(mutex_);
  stats_.texts += texts;
  stats_.tokens += tokens;
  stats_.runs += runs;
}

EncodeCounts::Turn::Turn(EncodeCounts& counts, const Cancel& call) : counts_(counts), waiting_{&call} { counts_.wait(1); }

EncodeCounts::Turn::Turn(EncodeCounts& counts, std::vector<const Cancel*> waiting) : counts_(counts), waiting_(std::move(waiting)) {}

EncodeCounts::Turn::~Turn() {
  if (!waiting_.empty()) counts_.wait(-static_cast<std::int64_t>(waiting_.size()));
}

EncodeCounts::Run::Run(Turn& turn) : counts_(turn.counts_) {
  const std::lock_guard lock(counts_.mutex_);
  counts_.stats_.waiting -= static_cast<std::int64_t>(turn.waiting_.size());
  for (const Cancel* call : turn.waiting_) call->begin();
  turn.waiting_.clear();
  if (counts_.runs_++ == 0) counts_.busy_since_ = Clock::now();
}

EncodeCounts::Run::~Run() {
  const std::lock_guard lock(counts_.mutex_);
  const Clock::time_point now = Clock::now();
  const double busy = counts_.busy_until(now);
  if (--counts_.runs_ == 0) counts_.stats_.busy_seconds = busy;
}

}  // namespace pumice::engine
