// What a caller holds of a call: its sequences in the scheduler's batch, and what was said of them and not read yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "engine/sequence.h"

namespace pumice::engine {

class BadWords;
class Scheduler;
struct Runtime;

// Who is told news: whether he reads them, and did so in a moment last time.
struct Reader {
  bool reading = false, quick = true;
  std::chrono::steady_clock::time_point told_at;
};

struct Timings {  // of the steps that computed rows of the request: seconds that passed, also where others had rows in them
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;  // guesses, and those of them that were right: they are decode_tokens too
  double prefill_seconds = 0, decode_seconds = 0;
};

// Sequence s continues prompt s / n. Made by Scheduler::request(); nothing is computed before the first wait(). Any thread may call
// anything; what its sequences do is the scheduler's, under its lock.
class Request : public std::enable_shared_from_this<Request> {
 public:
  // params: of all prompts, or one for each; `n`, read_ahead and priority are the same in all of them. Throws invalid_argument,
  // context_length or out_of_memory when the prompts or params cannot be.
  Request(Scheduler& scheduler, const Runtime& runtime, const std::vector<std::vector<std::int32_t>>& prompts,
          std::span<const GenerateParams> params);

  // From now on its news come by Scheduler::pump(), under this tag, whenever there are tokens of so many steps (no more than read_ahead).
  // Throws overloaded where more wait than may.
  void start(std::uint64_t tag, std::int32_t steps);
  void hold(bool held);  // its news wait: their reader lags
  // Until there are tokens of so many steps (no more than read_ahead) that nobody has taken, or nothing more will come: true. False: max_ms
  // have passed.
  bool wait(std::int32_t steps, double max_ms);
  // The news there are. Where there are none, and an error has ended the request: throws it.
  std::vector<News> take();
  // With GenerateParams::shows_logits: the logits of sequences whose next token waits for answer(). They sit out until then, and nobody
  // else waits for them.
  struct Shown {
    std::int32_t sequence = 0;
    std::vector<std::int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<Shown> shown() const;
  // The logits to choose from, once for each row shown; -inf forbids a token. Throws invalid_argument for a NaN, an infinity and a
  // wrong size.
  void answer(std::int32_t sequence, std::span<const float> logits);
  void finish(std::int32_t sequence);
  void close();  // ends all sequences; their pages are free when the running step has ended
  bool done() const;  // all have ended, and everything has been taken

  std::int32_t sequences() const { return static_cast<std::int32_t>(sequences_.size()); }
  const std::vector<std::int32_t>& prompt_tokens() const { return prompt_tokens_; }  // per prompt
  std::vector<std::int32_t> reused_tokens() const;  // per prompt: found in the prefix cache
  std::vector<std::uint64_t> seeds() const;  // per prompt
  Timings timings() const;

 private:
  friend class Scheduler;

  // All of these under the scheduler's lock.
  bool ended() const;
  void want(std::int32_t steps);
  std::vector<News> collect();  // and marks them as read
  bool told_all() const;        // nothing more will come
  bool ready() const { return closed_ || ended() || unread_steps_ >= wanted_steps_ || shows(); }
  bool shows() const;
  Sequence* heir(const Sequence& sequence);  // of the same prompt's computation, when that one ends before it; null: nobody follows
  template <class Visit>
  void each_sharing(const Sequence& first, Visit&& visit) {  // `first` and those that follow it
    visit(sequences_[static_cast<std::size_t>(first.index)]);
    if (first.generated() > 0) return;
    for (std::int32_t i = first.index + 1; i < sequences() && i / n() == first.index / n(); ++i)
      if (sequences_[static_cast<std::size_t>(i)].state == Sequence::State::follows) visit(sequences_[static_cast<std::size_t>(i)]);
  }
  friend class Step;

  Scheduler& scheduler_;
  std::int32_t n() const { return params_.front().n; }
  std::int32_t read_ahead() const { return params_.front().read_ahead; }
  std::int32_t priority() const { return params_.front().priority; }
  void check(const Runtime& runtime, const GenerateParams& params) const;
  void add_filters(Sequence& sequence, const std::shared_ptr<const BadWords>& bad_words) const;

  const std::vector<GenerateParams> params_;  // one for each prompt
  std::deque<Sequence> sequences_;  // never move: pool and scheduler know them
  std::vector<std::int32_t> prompt_tokens_, reused_tokens_;
  Timings timings_;
  std::exception_ptr error_;   // what ended it; told when all news are taken
  std::int32_t unread_steps_ = 0, wanted_steps_ = 1;
  std::int32_t waiting_ = 0;   // threads in wait()
  bool joined_ = false;        // the scheduler's batch
  bool lagging_ = false;       // some of its sequences sit out
  bool closed_ = false, left_behind_ = false, told_ = false;  // left_behind_: a fork() came while another thread was in wait()
  bool forked_ = false;        // its pages are not there any more
  bool pumped_ = false, queued_ = false, held_ = false;  // its news come by pump(); are to be had there; have to wait
  std::uint64_t tag_ = 0;      // as pump() calls it
  Reader reader_;              // who waits for news of it alone
  std::unique_ptr<std::condition_variable> news_ = std::make_unique<std::condition_variable>();

  // Of the current step.
  std::int64_t prompt_rows_ = 0, decode_rows_ = 0;
  bool sampled_ = false;
};

}  // namespace pumice::engine
