// A caller's handle to a request. Its functions take the scheduler's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request_state.h"

namespace pumice::engine {

class Scheduler;

// A request that Scheduler::request() has made. The destructor closes the request. Nothing is computed before the first wait() or start().
// Any thread may call any function. Sequence number s continues prompt number s / n, where n is GenerateParams::n.
class Request {
 public:
  Request(Scheduler& scheduler, std::shared_ptr<RequestState> state) : scheduler_(scheduler), state_(std::move(state)) {}
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Puts the request into the batch. From then on, Scheduler::pump() returns the request's news together with `tag` whenever `steps` steps
  // (or read_ahead steps, if that is smaller and not 0) have yielded tokens that are still unread. Throws overloaded if Limits allows no
  // further request to wait.
  void start(std::uint64_t tag, std::int32_t steps);
  // May be called after start(). After hold(true), pump() returns no news of this request, because the request's reader is too slow. After
  // hold(false), pump() returns its news again.
  void hold(bool held);
  // Waits until `steps` steps (or read_ahead steps, if that is smaller and not 0) have yielded unread tokens, until the caller must act
  // (shown()), or until the request has ended. Returns false if max_ms have passed before that.
  bool wait(std::int32_t steps, double max_ms);
  // Returns all unread news. If there are none and an error has ended the request, throws the error.
  std::vector<News> take();
  // With GenerateParams::shows_logits, shown() returns the logits of each sequence whose next token waits for answer(). Such a sequence
  // takes part in no step until answer() is called. Other sequences go on.
  struct Shown {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<Shown> shown() const;
  // Sets the logits from which the next token of `sequence` is chosen. Must be called once for each element of shown(). A logit of -inf
  // forbids its token. Throws invalid_argument for a NaN, for +inf, and for a wrong number of logits.
  void answer(std::int32_t sequence, std::span<const float> logits);
  void finish(std::int32_t sequence);  // ends a sequence, and drops its unread news
  void close();                        // ends all sequences; their pages become free when the running step is over
  bool done() const;                   // returns true if the request is closed, or if all sequences have ended and take() has nothing left

  std::int32_t sequences() const { return static_cast<std::int32_t>(state_->sequences.size()); }
  std::vector<std::int32_t> prompt_tokens() const;  // returns the number of tokens of each prompt
  std::vector<std::int32_t> reused_tokens() const;  // returns for each prompt how many tokens were found in the prefix cache
  std::vector<std::uint64_t> seeds() const;         // returns the random seed of each sequence
  Timings timings() const;

 private:
  Scheduler& scheduler_;
  const std::shared_ptr<RequestState> state_;
};

}  // namespace pumice::engine
