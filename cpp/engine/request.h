// A caller's handle to a request. It takes the scheduler's lock for each call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request_state.h"

namespace pumice::engine {

class Scheduler;

// Scheduler::request() makes it, and its destructor closes the request. Nothing is computed before the first wait() or start(). Any thread
// may call any function. Sequence s continues prompt s / n.
class Request {
 public:
  Request(Scheduler& scheduler, std::shared_ptr<RequestState> state) : scheduler_(scheduler), state_(std::move(state)) {}
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // From now on Scheduler::pump() returns the news of this request, under this tag, whenever so many steps (read_ahead at most) have
  // brought unread tokens. Throws overloaded if Limits allows no further request to wait.
  void start(std::uint64_t tag, std::int32_t steps);
  // After start(): true makes pump() keep the news of this request back, because their reader lags.
  void hold(bool held);
  // Waits until so many steps (read_ahead at most) have brought unread tokens, or until nothing more will come. Returns false if max_ms
  // have passed before that.
  bool wait(std::int32_t steps, double max_ms);
  // Returns all unread news. If there are none and an error has ended the request, throws the error.
  std::vector<News> take();
  // With GenerateParams::shows_logits: returns the logits of sequences whose next token waits for answer(). Such a sequence sits out until
  // then; other sequences go on.
  struct Shown {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<Shown> shown() const;
  // Sets the logits to choose from, once for each row shown; -inf forbids a token. Throws invalid_argument for a NaN, for +inf, and for a
  // wrong size.
  void answer(std::int32_t sequence, std::span<const float> logits);
  void finish(std::int32_t sequence);  // ends a sequence, and drops its unread news
  void close();                        // ends all sequences; their pages become free when the running step is over
  bool done() const;                   // true if all sequences have ended, and all news have been taken

  std::int32_t sequences() const { return static_cast<std::int32_t>(state_->sequences.size()); }
  std::vector<std::int32_t> prompt_tokens() const;  // per prompt
  std::vector<std::int32_t> reused_tokens() const;  // per prompt: tokens found in the prefix cache
  std::vector<std::uint64_t> seeds() const;         // per prompt
  Timings timings() const;

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
};

}  // namespace pumice::engine
