// Small encode() calls of many callers: those that come while others run are run together as soon as these are done.
//
// Nobody waits for company: a call that finds no other at work runs at once, in its caller's thread, and whoever runs takes all along that
// wait. A text's bits do not depend on its batch (on the CPU), so nothing changes but speed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cancel.h"
#include "engine/at_fork.h"
#include "engine/embedder.h"

namespace pumice::engine {

class EncodeQueue {
 public:
  explicit EncodeQueue(Runtime& runtime);
  EncodeQueue(const EncodeQueue&) = delete;
  EncodeQueue& operator=(const EncodeQueue&) = delete;

  // As engine::encode() with an automatic budget; many texts run by themselves. A cancelled call stops nobody else's; it returns when its
  // own texts are read no more.
  void encode(const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, const Cancel& cancel);
  // Several calls of one thread, each with its own Cancel. None is thrown away for another's sake: an error is in its call.
  void encode(std::span<EncodeCall> calls, std::span<const Cancel* const> cancels);
  std::int64_t runs() const;  // of one or several calls each

 private:
  struct Call {
    EncodeCall& call;
    const Cancel* cancel;
    enum class State : std::uint8_t { waits, runs, done } state = State::waits;
  };
  using Lock = std::unique_lock<std::mutex>;

  bool small(const Texts& texts) const;
  void wait_for(std::span<Call> mine);
  void lead(Lock& lock);
  void forget_parent();

  Runtime& runtime_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<Call*> waiting_;  // of threads in encode()
  std::vector<Call*> running_;
  std::unique_ptr<Cancel> cancel_;  // of what runs
  double seconds_per_token_ = 0;
  std::int64_t runs_ = 0;
  const AtFork at_fork_;
};

}  // namespace pumice::engine
