// One step of a model: rows of many sequences go through the body, and a token is chosen for each sequence whose last id was computed. A
// step changes no sequence. Commit changes them after the whole step has succeeded, so a step that was stopped can be repeated.
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
    std::int32_t rows;  // rows of ids; rows of guesses follow them
    bool samples;
    std::size_t first_choice = 0;            // in choices_; those of its followers, or of its rows of guesses, come next
    std::optional<Error> error = {};         // set if no token could be chosen: a NaN, or a bias that forbids all tokens
    std::vector<std::int32_t> guesses = {};  // draft tokens after its last id
    std::size_t chosen = 0;                  // how many draft tokens were accepted, plus one
    bool stopped = false;                    // no token could be chosen after a guess; the next step tries it without guesses
    ChangedIds changed = ChangedIds();       // where there are guesses: Sequence::changed and the guesses
    std::int64_t masks = -1;                 // index of the first word of its masks in allowed_; -1 if all tokens are allowed
    TextTask::Rows wanted = {};              // for a text without choices: the rows that yield results
    std::size_t first_wanted = 0;            // index of the first of them among the output rows of the body
  };

  // Fills the step with one row of each sequence that decodes, then with chunks of prompts and texts, first come, first served. It has no
  // more rows of each kind than planned.
  void assemble(const Plan& plan);
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::int32_t rows() const { return static_cast<std::int32_t>(ids_.size()); }
  double guess_seconds() const { return guess_seconds_; }  // time that smaller models spent on guesses
  const Choice& choice(std::size_t i) const { return choices_[i]; }

  // Runs the body and the heads, and chooses tokens. Returns false if a device has no memory for so many rows. Nothing has changed then,
  // and the next step has fewer rows (Runtime::body).
  bool run(Runtime& runtime, const Cancel& cancel);

 private:
  struct Row {  // a row after which a token is chosen
    Part* part;
    std::size_t at;  // 0: the part's last id; n: its n-th guess
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
  std::size_t mask_words_ = 0;  // words of a row's mask
  std::vector<std::uint32_t> allowed_, mask_scratch_;
  std::vector<Part*> filtered_;
  std::vector<std::int32_t> allowed_first_;
  std::vector<std::size_t> groups_;  // the first row of each part, and the end of all
  double guess_seconds_ = 0;
  std::vector<std::int32_t> ids_, selected_, reported_, reported_first_;
  std::vector<Segment> segments_;
  std::vector<float> hidden_, sorted_, logits_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per worker of the device
  std::vector<Choice> choices_;
};

}  // namespace pumice::engine
