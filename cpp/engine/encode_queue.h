// Runs small encode() calls of many callers together. Calls that arrive while others run wait until these are done, and then run as one.
//
// No call waits for others to join it. A call that finds none running runs at once, in its caller's thread, together with all waiting
// calls. On the CPU, the bits of a text's result do not depend on its batch, so running together changes nothing but speed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/cancel.h"
#include "engine/at_fork.h"
#include "engine/embedder.h"
#include "engine/lock_order.h"

namespace pumice::engine {

class EncodeQueue {
 public:
  explicit EncodeQueue(Runtime& runtime);
  EncodeQueue(const EncodeQueue&) = delete;
  EncodeQueue& operator=(const EncodeQueue&) = delete;

  // Computes engine::encode() with an automatic budget. Calls with few texts may be merged into one run of the model; a call with many
  // texts gets a run of its own. Cancelling a call does not affect the others: it returns as soon as no run reads its texts any more.
  void encode(const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, const Cancel& cancel);
  // Runs several calls of one thread, each with its own Cancel. An error is kept in its call, and the others go on.
  void encode(std::span<EncodeCall> calls, std::span<const Cancel* const> cancels);
  std::int64_t runs() const;  // how often the model has run so far, each time for one call or several

 private:
  struct Call {
    EncodeCall& call;
    const Cancel* cancel;
    enum class State : std::uint8_t { waits, runs, done } state = State::waits;
  };
  using Lock = std::unique_lock<OrderedMutex<LockRank::encode_queue>>;

  bool small(const Texts& texts) const;
  void wait_for(std::span<Call> mine);
  void lead(Lock& lock);
  void forget_parent();

  Runtime& runtime_;
  mutable OrderedMutex<LockRank::encode_queue> mutex_;
  std::unique_ptr<Condition> changed_ = std::make_unique<Condition>();
  std::deque<Call*> waiting_;  // the calls live on the stacks of threads in encode()
  std::vector<Call*> running_;
  std::unique_ptr<Cancel> cancel_;  // stops the run in progress
  double seconds_per_token_ = 0;
  std::int64_t runs_ = 0;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
