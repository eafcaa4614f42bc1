// The task of a sequence with a given text. The text's keys and values, logits or log-probabilities are computed, and no token is chosen.
// The documentation calls such a text a "text without choices".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "engine/lock_order.h"
#include "engine/runtime.h"
#include "engine/sampler.h"

namespace pumice::engine {

// The caller's memory for the likeliest tokens at each position of a text with scores (Wants::scores).
struct Likeliest {
  std::int32_t count = 0;            // number of tokens per score; 0: none
  std::span<std::int32_t> ids = {};  // for each score, `count` tokens, likeliest first
  std::span<float> log_probs = {};   // for each score, the log-probabilities of the tokens in `ids`
};

class TextTask {
 public:
  enum class Wants : std::uint8_t {
    pages,        // the text's keys and values, which the caller reads from the pages (save_prefix)
    room,         // empty pages, into which the caller writes keys and values (load_prefix)
    last_logits,  // the logits after the last token
    all_logits,   // the logits after each token
    scores        // the log-probability of each token but the first
  };

  // Says which rows yield results: rows [first, first + count) of the rows that one step computes for a text.
  struct Rows {
    std::int32_t first = 0, count = 0;
  };

  // `out` and `likeliest` are the caller's memory for all results. No step accesses this memory after close(). likeliest.count must be 0
  // except with Wants::scores. If likeliest.count is not 0, scores are computed in the same way as the log-probabilities of generated
  // tokens: from whole rows of logits.
  TextTask(Wants wants, std::span<float> out, const Likeliest& likeliest = {}) : wants_(wants), out_(out), likeliest_(likeliest) {}

  bool wants_each_row() const { return wants_ == Wants::all_logits || wants_ == Wants::scores; }
  bool wants_room() const { return wants_ == Wants::room; }
  // Returns true if the sequence must keep its pages until the caller has read or written them.
  bool keeps_pages() const { return wants_ == Wants::pages || wants_ == Wants::room; }
  // Returns which rows yield results in a step with the tokens past, ..., past + rows - 1 of a text of `tokens` tokens.
  Rows wanted(std::int64_t past, std::int32_t rows, std::int64_t tokens) const;

  // Computes the results of the hidden rows after tokens first, first + 1, ... of `ids`, and copies the results to `out`. `scratch` is used
  // for at most head_rows() rows of logits. Throws numeric if a result is a NaN or an infinity.
  void take(Runtime& runtime, RunSpace& space, std::span<const std::int32_t> ids, std::int64_t first, std::span<const float> hidden,
            std::vector<float>& scratch, const Cancel& cancel);
  // After this call, no step writes to `out` any more. If a step is copying results to `out`, waits for that copy, but not for the step.
  void close();

  // Number of tokens, from the first on, whose results are in `out`. After a preemption, the sequence may take the pages of these tokens
  // from the prefix cache, and must compute the other tokens again. Commit updates this number.
  std::int64_t given = 0;

 private:
  bool closed() const;
  void give(std::size_t at, std::span<const float> values);
  void rank(const Pipeline& pipeline, std::span<const float> logits, std::span<const std::int32_t> targets, const Cancel& cancel);
  void give_choices(std::size_t at, std::size_t count);

  const Wants wants_;
  mutable OrderedMutex<LockRank::text> mutex_;  // guards the caller's memory and closed_, because close() may be called during a step
  std::span<float> out_;
  const Likeliest likeliest_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // one per worker of the device
  std::vector<Choice> choices_;                     // results of rank() for the last block of rows
  bool closed_ = false;
};

}  // namespace pumice::engine
