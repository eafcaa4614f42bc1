// A caller's handle to a request. It takes the scheduler's lock for each call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request_state.h"

namespace pumice::engine {

class Scheduler;

// Scheduler::request() makes it; its destructor closes the request. Nothing is computed before the first wait() or start(). Any thread may
// call any function. Sequence s continues prompt s / n.
class Request {
 public:
  Request(Scheduler& scheduler, std::shared_ptr<RequestState> state) : scheduler_(scheduler), state_(std::move(state)) {}
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // From now on Scheduler::pump() gives its news, under this tag, whenever there are tokens of so many steps (read_ahead at most).
  // Throws overloaded where Limits allows no further request to wait.
  void start(std::uint64_t tag, std::int32_t steps);
  // After start(): true keeps its news back, because their reader lags.
  void hold(bool held);
  // Waits until there are unread tokens of so many steps (read_ahead at most), or until nothing more will come. False: max_ms have passed.
  bool wait(std::int32_t steps, double max_ms);
  // Gives all unread news. Where there are none and an error has ended the request, throws the error.
  std::vector<News> take();
  // With GenerateParams::shows_logits: the logits of sequences whose next token waits for answer(). Such a sequence sits out until then;
  // other sequences go on.
  struct Shown {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<Shown> shown() const;
  // Gives the logits to choose from, once for each row shown; -inf forbids a token. Throws invalid_argument for a NaN, an infinity and a
  // wrong size.
  void answer(std::int32_t sequence, std::span<const float> logits);
  void finish(std::int32_t sequence);  // ends a sequence, and drops its unread news
  void close();                        // ends all sequences; their pages are free when the running step is over
  bool done() const;                   // all have ended, and everything has been taken

  std::int32_t sequences() const { return static_cast<std::int32_t>(state_->sequences.size()); }
  std::vector<std::int32_t> prompt_tokens() const;  // per prompt
  std::vector<std::int32_t> reused_tokens() const;  // per prompt: found in the prefix cache
  std::vector<std::uint64_t> seeds() const;         // per prompt
  Timings timings() const;

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
};

}  // namespace pumice::engine
