// Runs small encode() calls of many callers together. Calls that arrive during a run wait for its end, and then run together.
//
// No call is delayed so that further calls can join it. Whenever no call runs, the thread of one of the waiting callers immediately runs
// all waiting calls that fit into one run. On the CPU, the bits of a text's result do not depend on its batch, so running calls together
// changes only the speed.
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

  // Does the same as engine::encode() with an automatic token budget. A small call may run together with other calls; a large call gets a
  // run of its own. Cancelling a call does not affect the calls that run with it. A cancelled call returns as soon as no run reads its
  // texts any more.
  void encode(const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, const Cancel& cancel);
  // Runs several calls for one thread. Each call has its own Cancel. An error of a call is stored in that call, and the other calls go on.
  void encode(std::span<EncodeCall> calls, std::span<const Cancel* const> cancels);
  std::int64_t runs() const;  // number of runs so far; a run serves one or more small calls

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
  std::deque<Call*> waiting_;  // the Call objects are on the stacks of the threads in encode()
  std::vector<Call*> running_;
  std::unique_ptr<Cancel> cancel_;  // stops the run in progress when it is requested; null if no call runs
  double seconds_per_token_ = 0;
  std::int64_t runs_ = 0;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
