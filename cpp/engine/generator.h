// Continues prompts: the loop of prefill, decode and sampling over ragged batches.
//
// A sequence is its ids (prompt, then what was sampled) and how many of them are computed, that is, have keys and values in the cache.
// Prefill and decode are one thing: a step runs some of the ids that are not computed yet; where that reaches the last one, a token is
// sampled. So a sequence whose pages were needed elsewhere simply starts again from its ids, and ends with the same tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "engine/runtime.h"
#include "engine/sampler.h"

namespace pumice::engine {

enum class Finish : std::uint8_t { none, eos, length };

struct GenerateParams {
  std::int64_t max_new_tokens = 512;
  std::int32_t n = 1;                 // sequences per prompt
  std::vector<std::int32_t> eos_ids;  // end a sequence; not given out
  SamplingParams sampling;
};

struct News {
  std::int32_t sequence = 0;
  std::vector<std::int32_t> ids;
  Finish finish = Finish::none;
  std::vector<float> logprobs;        // one per id, when asked for
  std::vector<std::int32_t> top_ids;  // ids x top_count
  std::vector<float> top_logprobs;
  std::int32_t top_count = 0;
};

struct Timings {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

// Sequence s continues prompt s / n. One thread at a time works with a Generator (others wait); between calls nothing is locked and its
// cache pages can be taken by others who find no other room.
class Generator {
 public:
  // Throws invalid_argument, context_length or out_of_memory when the prompts or params cannot be.
  Generator(std::shared_ptr<Runtime> runtime, const std::vector<std::vector<std::int32_t>>& prompts, GenerateParams params);
  ~Generator();

  // Runs steps until every sequence could have got max_steps tokens, max_ms have passed and there is news, or all have ended. Without
  // news only when cache pages are held by others for longer than max_ms. A cancelled call (Error) loses nothing: the next one goes on.
  std::vector<News> advance(std::int32_t max_steps, double max_ms, const Cancel& cancel);
  void finish(std::int32_t sequence);
  void close();  // ends all sequences
  bool done() const;

  std::int32_t sequences() const { return static_cast<std::int32_t>(sequences_.size()); }
  std::vector<std::int32_t> prompt_tokens() const;  // per prompt
  std::vector<std::int32_t> reused_tokens() const;  // per prompt: found in the prefix cache
  std::uint64_t seed() const { return seed_; }
  Timings timings() const;

 private:
  // follows: its prompt is being computed by the first sequence of the same prompt.
  enum class State : std::uint8_t { waits, follows, runs, ended };
  struct Sequence {
    std::int32_t index = 0, prompt_tokens = 0;
    std::uint64_t stream = 0;  // of random numbers
    State state = State::waits;
    std::vector<std::int32_t> ids;
    std::int64_t computed = 0;
    std::int32_t length = 0;  // Segment::length: of the prompt, until the rope wants all computed anew
    PageTable table;
    TokenCounts seen;
    ChangedIds changed;  // where tokens are chosen from the device's ranking
    News news;
    std::int64_t pending() const { return static_cast<std::int64_t>(ids.size()) - computed; }
    std::int64_t generated() const { return static_cast<std::int64_t>(ids.size()) - prompt_tokens; }
    std::span<const std::int32_t> known() const { return std::span(ids).first(static_cast<std::size_t>(computed)); }
  };
  struct StepPart {  // of a step
    Sequence* sequence;
    std::int32_t rows;
    bool samples;
    std::size_t first_choice;  // of its followers' too
  };
  enum class Outcome : std::uint8_t { sampled, computed, starved };

  void start_again(Sequence& sequence);  // gives its pages back; it waits
  void follow_rope();
  void end(Sequence& sequence, Finish finish);
  void make_room();
  void admit(std::int64_t rows_left);
  bool prefix_on_its_way(const Sequence& sequence) const;
  void assemble(std::int64_t decode_rows, std::int64_t prompt_rows);
  void sample(RunSpace& space, const Cancel& cancel);
  void run_top(RunSpace& space, std::span<const float> hidden, std::span<float> rows, const Cancel& cancel);
  void commit();
  void see(Sequence& sequence, std::int32_t id, bool generated) const;
  void take_choice(Sequence& sequence, const Choice& choice);
  Outcome step(const Cancel& cancel);
  template <class Visit>
  void each_sharing(const Sequence& first, Visit&& visit);  // `first` and those that follow it
  std::vector<News> collect_news();
  void resume();
  void pause() noexcept;

  const std::shared_ptr<Runtime> runtime_;
  const GenerateParams params_;
  const std::uint64_t seed_;
  const bool from_top_;   // the device ranks logits, and sampling needs no more than that
  std::int64_t context_;  // tokens per sequence: n_ctx, or what the page budget holds

  mutable ProcessLock mutex_;
  std::deque<Sequence> sequences_;  // never move: the pool knows their tables
  std::vector<std::int32_t> prompt_tokens_, reused_tokens_;
  Timings timings_;
  std::atomic<bool> done_{false};

  // Of the current step; reused.
  std::vector<StepPart> parts_;
  std::vector<StepPart*> sampling_;
  std::vector<std::int32_t> batch_ids_, selected_, reported_, reported_first_;
  std::vector<Segment> segments_;
  std::vector<float> hidden_, logits_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per worker of the device
  std::vector<Choice> choices_;
};

}  // namespace pumice::engine
