// One step of a model: some rows of many sequences through the body, and a choice for each that reached its last id. Changes no sequence
// (engine/scheduler.cpp does, when all has gone well), so a step that was stopped is simply made again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cancel.h"
#include "core/error.h"
#include "engine/admission.h"
#include "engine/runtime.h"
#include "engine/sequence.h"

namespace pumice::engine {

class Step {
 public:
  struct Part {
    Sequence* sequence;
    std::int32_t rows;  // of ids; rows of guesses follow them
    bool samples;
    std::size_t first_choice = 0;            // of its followers' too, or of the rows of guesses
    std::optional<Error> error = {};         // no token could be chosen: a NaN, a bias that forbids all
    std::vector<std::int32_t> guesses = {};  // of the tokens after its last id
    std::size_t chosen = 0;                  // choices that count: each row's, as long as the token is the one that was guessed
    bool stopped = false;                    // a row of guesses has no choice: the next step meets it again, by itself
    ChangedIds changed = ChangedIds();       // with the guesses, where there are any
    std::int64_t masks = -1;                 // word of its first row's mask; -1: everything may come
    TextTask::Rows wanted = {};              // of a text without choices
    std::size_t first_wanted = 0;            // among the rows that the body gives
  };

  // One row of each sequence that decodes, then chunks of prompts and texts, first come, first served; no more rows than planned of each.
  void assemble(const Plan& plan);
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::int32_t rows() const { return static_cast<std::int32_t>(ids_.size()); }
  double guess_seconds() const { return guess_seconds_; }  // that smaller models took
  const Choice& choice(std::size_t i) const { return choices_[i]; }

  // Body, heads, choices. False: a device has no memory for so many rows; nothing happened, and the next step has fewer (Runtime::body).
  bool run(Runtime& runtime, const Cancel& cancel);

 private:
  struct Row {  // that a token is chosen after
    Part* part;
    std::size_t at;  // 0: its last id, else a guess
  };
  void guess(const Runtime& runtime, const Cancel& cancel);
  void ask_filters(Runtime& runtime, const Cancel& cancel);
  void ask_filters(Part& part, std::span<std::uint32_t> scratch);
  void lay_out();
  void read_texts(Runtime& runtime, RunSpace& space, const Cancel& cancel);
  void sample(Runtime& runtime, RunSpace& space, const Cancel& cancel);
  void choose(Runtime& runtime, RunSpace& space, std::span<const Row> rows, std::span<const float> hidden, bool top, const Cancel& cancel);
  void choose(Part& part, Sampler& sampler, std::span<float> row, bool top, std::int32_t vocab);
  void run_top(Runtime& runtime, RunSpace& space, std::span<const Row> rows, std::span<const float> hidden, std::span<float> out,
               const Cancel& cancel);

  std::span<const std::uint32_t> allowed(const Part& part, std::size_t at) const;

  std::vector<Part> parts_;
  std::vector<Row> sampling_;
  std::size_t mask_words_ = 0;  // of a row
  std::vector<std::uint32_t> allowed_, mask_scratch_;
  std::vector<Part*> filtered_;
  std::vector<std::int32_t> allowed_first_;
  std::vector<std::size_t> groups_;  // where rows of another part begin, and their end
  double guess_seconds_ = 0;
  std::vector<std::int32_t> ids_, selected_, reported_, reported_first_;
  std::vector<Segment> segments_;
  std::vector<float> hidden_, sorted_, logits_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per worker of the device
  std::vector<Choice> choices_;
};

}  // namespace pumice::engine
