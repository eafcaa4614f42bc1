// The work of a request without choices: it computes the keys and values, logits or log-probabilities of a text, and no token is chosen
// after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "engine/lock_order.h"
#include "engine/runtime.h"

namespace pumice::engine {

class TextTask {
 public:
  enum class Wants : std::uint8_t {
    pages,        // keys and values, which the caller reads from the pages (save_prefix)
    room,         // pages alone: the caller writes keys and values into them (load_prefix)
    last_logits,  // the logits after the last token
    all_logits,   // the logits after each token
    scores        // the log-probability of each token but the first
  };

  // The rows of a piece of text that yield results. `first` is relative to the piece's first row.
  struct Rows {
    std::int32_t first = 0, count = 0;
  };

  // `out`: memory of the caller for all results. No step touches it after close().
  TextTask(Wants wants, std::span<float> out) : wants_(wants), out_(out) {}

  bool wants_each_row() const { return wants_ == Wants::all_logits || wants_ == Wants::scores; }
  bool wants_room() const { return wants_ == Wants::room; }
  // When its last row is computed, the sequence keeps its pages until the caller has read or written them.
  bool keeps_pages() const { return wants_ == Wants::pages || wants_ == Wants::room; }
  // Returns which rows yield results, for the piece with tokens [past, past + rows) of a text of `tokens` tokens.
  Rows wanted(std::int64_t past, std::int32_t rows, std::int64_t tokens) const;

  // Computes the results of the hidden rows after tokens first, first + 1, ... of `ids`, and copies them to `out`. `scratch` holds at most
  // head_rows() rows of logits. Throws numeric for a NaN or an infinity.
  void take(Runtime& runtime, RunSpace& space, std::span<const std::int32_t> ids, std::int64_t first, std::span<const float> hidden,
            std::vector<float>& scratch, const Cancel& cancel);
  // Returns at once, or as soon as a copy that is being made is done.
  void close();

  // The results of tokens before this one are in `out`. A preempted sequence may share cached pages up to here, and computes the rest
  // again. Commit changes it.
  std::int64_t given = 0;

 private:
  bool closed() const;
  void give(std::size_t at, std::span<const float> values);

  const Wants wants_;
  mutable OrderedMutex<LockRank::text> mutex_;  // guards out_: the caller may give up while a step computes
  std::span<float> out_;
  bool closed_ = false;
};

}  // namespace pumice::engine
