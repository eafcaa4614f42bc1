// The state of a request: its parameters and sequences, its progress, and how its news reach the caller. The scheduler's lock guards
// everything in this file.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/lock_order.h"
#include "engine/sequence.h"

namespace pumice::engine {

struct Runtime;

using Clock = std::chrono::steady_clock;

// A thread that waits for news.
struct NewsReader {
  bool reading = false;   // true if the thread was woken for news and has not asked for more since
  std::int32_t skip = 0;  // number of steps from now on that do not wait for this thread (NewsDesk::let_read)
};

// Sums over the steps that computed rows of the request. Each request in a step counts the full duration of that step. The duration is
// divided between prefill_seconds and decode_seconds in proportion to the request's own rows.
struct Timings {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  // Number of guesses (draft tokens), and number of guesses that were right. decode_tokens includes the right guesses.
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  // Times in seconds since the request's start; empty before the event. If the request has several prompts or sequences, the latest event
  // counts.
  std::optional<double> queued_seconds;       // time of the start of the step that computes the first row of a prompt
  std::optional<double> first_token_seconds;  // time when the first token of a sequence is known
};

// Returns a copy of the exception, with an Error object of its own, so that threads of several callers do not use and free the same object.
std::exception_ptr own_copy(const std::exception_ptr& error);

struct RequestState : std::enable_shared_from_this<RequestState> {
  enum class Life : std::uint8_t {
    resting,     // not in the batch: wait() or start() was not called yet, or all of its sequences have ended
    joined,      // in the batch
    forked,      // in the child of a fork: not in the batch; sequences that were running have lost their pages
    left_behind  // in the child of a fork: only a thread of the parent reads the news, so wait() and start() throw forked_device
  };
  enum class Delivery : std::uint8_t {
    asked,   // the caller fetches the news with wait() and take()
    pumped,  // pump() returns the news; there is none now, so the request is not in NewsDesk's queue
    queued,  // pump() returns the news; there is some, so the request is in NewsDesk's queue
    held,    // pump() returns no news for now, because the request's reader is too slow (Request::hold)
    over     // no more news will come, because the request was closed or its error was thrown
  };

  // All elements of `params` have the same n, read_ahead, priority, max_seconds and chunk_seconds.
  std::int32_t n() const { return params.front().n; }
  std::int32_t read_ahead() const { return params.front().read_ahead; }
  std::int32_t priority() const { return params.front().priority; }
  float max_seconds() const { return params.front().max_seconds; }
  float chunk_seconds() const { return params.front().chunk_seconds; }

  bool closed() const { return delivery == Delivery::over; }
  bool ended() const;  // returns true if all sequences have ended
  bool shows() const;  // returns true if the logits of a sequence wait for the caller's answer
  bool held() const;   // returns true if the caller may read or write the pages of a text (TextTask) now
  // Returns true if `wanted_steps` steps have yielded unread tokens, and chunk_seconds have passed since the caller last got tokens. Does
  // not wait for chunk_seconds if the caller has got no tokens yet, or if a sequence has at least read_ahead / 2 unread tokens. Also
  // returns true if a sequence lags.
  bool due() const;
  bool ready() const { return closed() || ended() || due() || shows() || held(); }
  bool told_all() const;          // returns true if the caller has got all news and the error, if any
  void want(std::int32_t steps);  // sets wanted_steps to `steps`, or to read_ahead if that is smaller and not 0
  double seconds_to(Clock::time_point moment) const { return std::chrono::duration<double>(moment - start).count(); }
  std::vector<News> collect();          // returns all unread news, and marks them as read
  Sequence& at(std::int32_t sequence);  // throws invalid_argument if there is no such sequence

  std::vector<GenerateParams> params;  // one element for all prompts, or one for each prompt
  // These are deques, because other objects hold pointers to the elements, which must not move. Sequence s continues prompt s / n.
  std::deque<Prompt> prompts;
  std::deque<Sequence> sequences;

  Life life = Life::resting;
  Clock::time_point start = Clock::time_point::max();     // when the request joined the batch for the first time; max() before that
  Clock::time_point deadline = Clock::time_point::max();  // when max_seconds have passed after `start`; max() if there is no such limit
  std::exception_ptr error;                               // the error that ended the request; thrown when all news have been taken
  Timings timings;

  Delivery delivery = Delivery::asked;
  std::uint64_t tag = 0;  // identifies the request in the result of pump()
  std::int32_t unread_steps = 0, wanted_steps = 1;
  Clock::time_point collected = Clock::time_point::min();  // when the caller last got tokens
  std::int32_t waiting = 0;                                // number of threads in wait()
  NewsReader reader;                                       // the thread in wait()
  std::unique_ptr<Condition> news = std::make_unique<Condition>();

  struct Share {  // the request's part in the step whose results Commit is applying
    std::int64_t prompt_rows = 0, decode_rows = 0;
    bool sampled = false;
  } share;
};

// Makes a request, which computes nothing yet. `params` has one element for all prompts, or one for each prompt. Throws invalid_argument,
// context_length or out_of_memory if the model cannot serve the prompts or the parameters.
std::shared_ptr<RequestState> make_request(const Runtime& runtime, const std::vector<std::vector<std::int32_t>>& prompts,
                                           std::span<const GenerateParams> params);

}  // namespace pumice::engine
