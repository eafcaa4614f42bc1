// Implements speculative decoding: the next tokens of a sequence are guessed, so that one step can compute several of its rows.
//
// Guesses (draft tokens) never change the result. The token after each row is chosen exactly as it would be without guesses, because its
// random number is a function of seed, stream and position alone. The row after a guess is used only if the chosen token equals the guess.
// (Leviathan et al. 2023 accept guesses at random instead, which preserves the distribution but not the tokens.) Guesses come from the
// sequence's own ids (prompt lookup), from a smaller model (Drafter), from the model's own draft head (DraftHead), or from a grammar that
// allows only one text (TokenFilter::foreseen).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/runtime.h"
#include "engine/sampler.h"

namespace pumice::engine {

class Drafter;
struct Sequence;

// Whether the model's draft head makes guesses. `off` means that it never does, and `automatic` that it does if the model has one. `asked`
// means that the caller requires it, so that the request fails if the model has no draft head.
enum class OwnGuesses : std::uint8_t { off, automatic, asked };

struct Speculation {                              // settings of a request
  std::int32_t matching = 0;                      // minimum number of ids in a match of a prompt lookup; 0: no lookups
  std::int32_t most = 8;                          // maximum number of guesses in a step
  std::shared_ptr<Drafter> drafter;               // the draft model; null if there is none
  OwnGuesses own = OwnGuesses::automatic;         // `automatic` means `off` if on() is true
  bool foreseen = true;                           // whether the next text is guessed if a grammar allows only one text
  bool always = false;                            // for tests and bench: makes guesses even if they would not save time
  std::vector<std::vector<std::int32_t>> replay;  // for tests and bench: the guesses of each sequence
  bool on() const { return matching > 0 || drafter || !replay.empty(); }
  bool asks_draft_head() const { return own == OwnGuesses::asked || (own == OwnGuesses::automatic && !on()); }
};

// Finds the longest run of ids, at least `matching` ids long, that ends the text and also occurs earlier in the text. If such a run occurs
// several times, the latest occurrence counts. Appends to `guesses` the `most` ids that follow that occurrence. If fewer ids follow, the
// appended ids are repeated from the first one on, as if the text went on to repeat them.
void look_up(std::span<const std::int32_t> ids, std::int32_t matching, std::size_t most, std::vector<std::int32_t>& guesses);

// Estimates the duration of steps that only decode, by a linear function of the number of rows that is fitted to recent steps.
class StepCost {
 public:
  void saw(std::int32_t rows, double seconds);  // enters the duration of a step with `rows` rows
  bool known() const { return weight_ > 0; }
  double row() const;              // returns the seconds that an additional row takes
  double step(double rows) const;  // returns the seconds that a step with `rows` rows takes
  // saw_own() enters how many seconds the model's draft head took for each guess of a step. own_guess() returns the recent average, which
  // is 0 before the first guess.
  void saw_own(double seconds_per_guess);
  double own_guess() const { return own_guess_; }

 private:
  double own_guess_ = 0;
  double weight_ = 0, rows_ = 0, seconds_ = 0, rows2_ = 0, rows_seconds_ = 0;
  // The constant part of a step's duration, divided by the duration of an additional row. 3 is typical for a CPU, and is used until steps
  // with different numbers of rows have been measured.
  double fixed_rows_ = 3;
};

// A sequence's keys and values in the cache of its drafter.
struct Drafted {
  std::shared_ptr<Drafter> drafter;
  PageTable table;
  std::vector<std::int32_t> ids;  // the ids whose keys and values are in the table
  SamplingParams sampling;        // the sequence's parameters, without biases for ids that the drafter lacks
  bool ready = false;             // true if `sampling` is set
};

// The data of a sequence that the model's draft head needs.
struct OwnDraft {
  SamplingParams sampling;  // the sequence's parameters, changed as in Drafted::sampling
  std::vector<float> row;   // the body's hidden row from which the last id was chosen
  // The value of Sequence::computed when `row` was set, or -1 if there is no row. If Sequence::computed differs now, `row` is out of date.
  std::int64_t after = -1;
  bool ready = false;  // true if `sampling` is set
};

// Decides how many guesses are worth their cost for one sequence. For this, it keeps an account in seconds, which begins with the duration
// of one step. The cost of each guess is subtracted from the account. The time that accepted guesses save is added, and so are 1.5 % of
// each step's duration. So a sequence whose guesses are never accepted loses at most the duration of one step, and 1.5 % of its time.
class Guesses {
 public:
  // Returns how many guesses, at most `most`, the sequence should have in the next step. The step has `rows` decode rows, not counting
  // guesses. Each guess costs an additional row and `extra` seconds.
  std::int32_t wanted(const StepCost& cost, std::int64_t rows, double extra, std::int32_t most);
  // Enters the result of a step that had `rows` decode rows, not counting guesses. The sequence had `guessed` guesses in this step, which
  // cost `paid` seconds in all. `accepted` of these guesses were right.
  void saw(const StepCost& cost, std::int64_t rows, std::size_t guessed, std::size_t accepted, double paid);

  std::unique_ptr<Drafted> drafted;  // null if no draft model guesses for the sequence
  std::unique_ptr<OwnDraft> own;     // null if the model's draft head makes no guesses for the sequence

 private:
  double hits_ = 1.4, tests_ = 2;  // hits_ / tests_ is the weighted fraction of recent guesses that were right; 0.7 before the first guess
  double account_ = 0;             // balance of the account, in seconds
  bool opened_ = false;            // true if account_ has its first balance
};

// A draft model, which is a smaller model that guesses the tokens of another model. Both models have the same tokenizer. The draft model
// uses the sampling parameters and random numbers of the sequence for which it guesses, so that equal logits give equal tokens. It runs
// within the other model's steps, and has its own cache.
class Drafter {
 public:
  // `owner` keeps the smaller model alive. `freed` is called, without a lock, when pages of the smaller model may have become free for its
  // other callers.
  Drafter(std::shared_ptr<const void> owner, Runtime& runtime, std::function<void()> freed = {})
      : owner_(std::move(owner)), runtime_(runtime), freed_(std::move(freed)) {}

  struct Task {
    const Sequence* sequence;
    Drafted* drafted;
    std::size_t most;
    std::vector<std::int32_t>* guesses;
  };
  // Adds guesses to each task. A task gets no guesses if the cache has too few pages for its sequence, or if the cache lacks many rows of
  // the sequence. In the second case, some of the missing rows are computed, in each call for only one sequence.
  void propose(std::span<Task> tasks, const Cancel& cancel);
  void release(Drafted& drafted);
  double seconds_per_guess() const { return seconds_per_guess_; }
  const Runtime& runtime() const { return runtime_; }

 private:
  bool prepare(Task& task);
  bool run(std::span<Task* const> tasks, std::size_t guessed, std::int64_t most_rows, const Cancel& cancel);

  const std::shared_ptr<const void> owner_;
  Runtime& runtime_;
  const std::function<void()> freed_;
  double seconds_per_guess_ = 0;  // recent average; 0 before the first guess
  Sampler sampler_;
  std::vector<float> hidden_, logits_;
};

// Makes guesses with the model's own draft head (model::Config::draft) or its assistant (model/assistant.h). A draft head is a layer that
// guesses the token after a sequence's last id. Its inputs are this id and the body's hidden row from which the id was chosen. Its keys and
// values are in the pages of the sequence. Steps store the keys and values for all computed ids. A run of the draft head stores temporary
// keys and values for the last id and for earlier guesses, until a step computes these ids.
class DraftHead {
 public:
  struct Task {
    const Sequence* sequence;
    OwnDraft* own;
    std::size_t most;
    std::vector<std::int32_t>* guesses;
  };
  // Adds guesses to each task in which OwnDraft::row is the row from which the sequence's last id was chosen. Each run of the draft head
  // adds one guess to every such task.
  void propose(Runtime& runtime, std::span<Task> tasks, const Cancel& cancel);

 private:
  void run(Runtime& runtime, std::span<Task* const> tasks, std::size_t guessed, const Cancel& cancel);

  Sampler sampler_;
  std::vector<float> in_, out_, logits_;
  std::vector<std::int32_t> ids_;
  std::vector<Segment> segments_;
};

}  // namespace pumice::engine
