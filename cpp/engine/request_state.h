// A request as the scheduler sees it: its sequences, its progress, and how its news reach the caller. The scheduler's lock guards all of
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "engine/lock_order.h"
#include "engine/sequence.h"

namespace pumice::engine {

struct Runtime;

using Clock = std::chrono::steady_clock;

// A thread that waits for news.
struct Reader {
  bool reading = false;   // it was told of news, and has not come back for more
  std::int32_t skip = 0;  // number of further steps that do not wait for it (NewsDesk::let_read)
};

// Sums over the steps that computed rows of the request. Each request in a step counts the full duration of that step.
struct Timings {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;  // guesses, and how many of them were right; decode_tokens includes the right ones
  double prefill_seconds = 0, decode_seconds = 0;
};

// Returns an exception with an Error of its own. Otherwise threads of several callers would use and free the same Error.
std::exception_ptr own_copy(const std::exception_ptr& error);

struct RequestState : std::enable_shared_from_this<RequestState> {
  enum class Life : std::uint8_t {
    resting,     // not in the batch: wait() or start() was not called yet, or all of its sequences have ended
    joined,      // in the batch
    forked,      // in the child of a fork: not in the batch, and the pages of sequences that ran are lost
    left_behind  // in the child of a fork, where a thread of the parent waited for it: every call throws forked_device
  };
  enum class Delivery : std::uint8_t {
    asked,   // the caller asks for its news: wait(), take()
    pumped,  // pump() returns its news, and has returned all so far
    queued,  // pump() returns its news, and its next call returns some
    held,    // pump() keeps its news back, because their reader lags
    over     // it has no more news: it was closed, or its error was thrown
  };

  // n, read_ahead, priority and max_seconds are the same in all parameters.
  std::int32_t n() const { return params.front().n; }
  std::int32_t read_ahead() const { return params.front().read_ahead; }
  std::int32_t priority() const { return params.front().priority; }
  float max_seconds() const { return params.front().max_seconds; }

  bool closed() const { return delivery == Delivery::over; }
  bool ended() const;  // all of its sequences have ended
  bool shows() const;  // some sequence's logits wait for the caller's answer
  bool held() const;   // its text is computed, and its caller reads or writes the pages
  bool ready() const { return closed() || ended() || unread_steps >= wanted_steps || shows() || held(); }
  bool told_all() const;                // nothing more will come
  void want(std::int32_t steps);        // sets wanted_steps: ready() once so many steps (read_ahead at most) have brought tokens
  std::vector<News> collect();          // takes all news, which then count as read
  Sequence& at(std::int32_t sequence);  // throws invalid_argument if there is no such sequence

  std::vector<GenerateParams> params;  // one for all prompts, or one for each
  std::deque<Prompt> prompts;          // deques: sequences, the pool and the scheduler hold pointers
  std::deque<Sequence> sequences;      // sequence s continues prompt s / n

  Life life = Life::resting;
  Clock::time_point deadline = Clock::time_point::max();  // set when it joins the batch for the first time
  std::exception_ptr error;                               // the error that ended it; thrown when all news are taken
  Timings timings;

  Delivery delivery = Delivery::asked;
  std::uint64_t tag = 0;  // identifies it in what pump() returns
  std::int32_t unread_steps = 0, wanted_steps = 1;
  std::int32_t waiting = 0;  // threads in wait()
  Reader reader;             // the thread in wait()
  std::unique_ptr<Condition> news = std::make_unique<Condition>();

  struct Share {  // its share in the step that Commit enters
    std::int64_t prompt_rows = 0, decode_rows = 0;
    bool sampled = false;
  } share;
};

// Makes a request, which computes nothing yet. params: one for all prompts, or one per prompt. Throws invalid_argument, context_length or
// out_of_memory if the model cannot serve the prompts or the parameters.
std::shared_ptr<RequestState> make_request(const Runtime& runtime, const std::vector<std::vector<std::int32_t>>& prompts,
                                           std::span<const GenerateParams> params);

}  // namespace pumice::engine
