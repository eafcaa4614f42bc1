// Runs one step of a model. The body computes rows of many sequences, and a token is chosen for each sequence whose last id was computed. A
// step changes no sequence. Commit changes the sequences after the whole step has succeeded, so a step that was stopped can be repeated.
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
    std::int32_t rows;                       // number of the sequence's ids that the step computes; the rows of guesses come after them
    bool samples;                            // true if a token is chosen after the last of these rows
    std::size_t first_choice = 0;            // index in choices_ of the part's first choice; the part's other choices come next
    std::optional<Error> error = {};         // why no token could be chosen, for example because of a NaN
    std::vector<std::int32_t> guesses = {};  // guesses (draft tokens) for the ids after the sequence's last id
    std::size_t chosen = 0;                  // number of rows after which a token was chosen: the accepted guesses, plus one
    bool stopped = false;                    // true if no token could be chosen after a guess; the next step repeats the guess's row
    ChangedIds changed = ChangedIds();       // the ids of Sequence::changed, and the guesses; used only if there are guesses
    std::int64_t masks = -1;                 // index in allowed_ of the first word of the part's masks; -1 if all tokens are allowed
    TextTask::Rows wanted = {};              // the rows that yield results of the sequence's TextTask
    std::size_t first_sampled = 0;           // index of the last id's row among the output rows of the body
    std::size_t first_wanted = 0;            // index of the first wanted row among the output rows of the body
  };

  // Fills the step with one row of each sequence that decodes, then with chunks of prompts and of the texts of TextTasks. Sequences come in
  // the order of plan.live. plan.decode_rows and plan.prompt_rows limit the numbers of rows.
  void assemble(const Plan& plan);
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::int32_t rows() const { return static_cast<std::int32_t>(ids_.size()); }
  double guess_seconds() const { return guess_seconds_; }  // time that draft models and the draft head spent on guesses
  double own_seconds() const { return own_seconds_; }      // time that the draft head alone spent on own_guesses() guesses
  std::int64_t own_guesses() const { return own_guesses_; }
  // Returns the body's hidden row from which a token of the part was chosen: the first token if `at` is 0, the second one if `at` is 1, and
  // so on.
  std::span<const float> row(const Part& part, std::size_t at) const {
    return std::span(hidden_).subspan((part.first_sampled + at) * width_, width_);
  }
  const Choice& choice(std::size_t i) const { return choices_[i]; }

  // Runs the body and the heads, and chooses tokens. Returns false if a device has no memory for so many rows. In that case nothing has
  // changed, and the next step has fewer rows (Runtime::body).
  bool run(Runtime& runtime, const Cancel& cancel);

 private:
  struct Row {  // a row after which a token is chosen
    Part* part;
    std::size_t at;  // 0 for the row of the part's last id, n for the row of its n-th guess
  };
  void guess(Runtime& runtime, const Cancel& cancel);
  void guess_with_draft_head(Runtime& runtime, const Cancel& cancel);
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
  std::size_t mask_words_ = 0;  // number of 32-bit words in the mask of one row
  std::vector<std::uint32_t> allowed_, mask_scratch_;
  std::vector<Part*> filtered_;
  std::vector<std::int32_t> allowed_first_;
  std::vector<std::size_t> groups_;  // within a block of rows: index of the first row of each part; the last element is the number of rows
  double guess_seconds_ = 0, own_seconds_ = 0;
  std::int64_t own_guesses_ = 0;
  DraftHead draft_head_;
  std::size_t width_ = 0;  // number of columns in the output rows of the body
  std::vector<std::int32_t> ids_, selected_, reported_, reported_first_, ranked_;
  std::vector<Segment> segments_;
  std::vector<SavedState> saves_;      // Segment::saves of all segments, one after another
  std::vector<std::size_t> saves_of_;  // number of elements of saves_ that belong to each segment
  std::vector<float> hidden_, sorted_, logits_;
  std::vector<std::unique_ptr<Sampler>> samplers_;  // one per worker of the device
  std::vector<Choice> choices_;
};

}  // namespace pumice::engine
