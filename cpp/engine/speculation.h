// Guessing the next tokens of a sequence, so that one step can compute several of its rows.
//
// Guesses (draft tokens) change no token. Each row's token is chosen as it would be without guesses, because its random number is a
// function of seed, stream and position alone. The next row counts only if that token equals the guess. (Leviathan et al. 2023 accept by
// chance instead, which preserves the distribution but not the tokens.) Guesses come from the sequence's own ids (prompt lookup), from a
// smaller model (Drafter), or from a grammar that allows only one text (TokenFilter::foreseen).
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

struct Speculation {                              // settings of a request
  std::int32_t matching = 0;                      // minimum number of ids in a match of a prompt lookup; 0: no lookups
  std::int32_t most = 8;                          // maximum number of guesses in a step
  std::shared_ptr<Drafter> drafter;               // null: no model
  bool foreseen = true;                           // guess the text where a grammar allows only one
  bool always = false;                            // for tests and bench: guess also where it does not pay
  std::vector<std::vector<std::int32_t>> replay;  // for tests and bench: the guesses of each sequence
  bool on() const { return matching > 0 || drafter || !replay.empty(); }
};

// Finds the longest earlier occurrence of the text's end, at least `matching` ids long (the latest among equally long ones), and returns
// the ids that followed it in `guesses`. If these reach the end of the text because the text repeats itself, they start over from their
// beginning.
void look_up(std::span<const std::int32_t> ids, std::int32_t matching, std::size_t most, std::vector<std::int32_t>& guesses);

// The duration of steps that only decode, as a function of their rows: a line fitted to recent steps.
class StepCost {
 public:
  void saw(std::int32_t rows, double seconds);
  bool known() const { return weight_ > 0; }
  double row() const;  // seconds per additional row
  double step(double rows) const;

 private:
  double weight_ = 0, rows_ = 0, seconds_ = 0, rows2_ = 0, rows_seconds_ = 0;
  double fixed_rows_ = 3;  // the constant part of a step, in rows: a CPU's, until steps of several sizes were seen
};

// A sequence's keys and values in the cache of its drafter.
struct Drafted {
  std::shared_ptr<Drafter> drafter;
  PageTable table;
  std::vector<std::int32_t> ids;  // the ids that are computed
  SamplingParams sampling;        // those of the sequence, without ids that the drafter lacks
  bool ready = false;             // `sampling` is set
};

// Decides how many guesses of a sequence pay. It keeps an account of seconds: rows of guesses are paid from it; accepted guesses pay in the
// time that they saved, and each step pays in 1.5 % of its time. So where no guess is accepted, a sequence loses one step and 1.5 %.
class Guesses {
 public:
  // Returns how many guesses the next step should have. The step decodes `rows` rows, and each guess costs `extra` seconds beside its row.
  std::int32_t wanted(const StepCost& cost, std::int64_t rows, double extra, std::int32_t most);
  // A step with `rows` rows, not counting guesses, had `guessed` guesses, which cost `paid` seconds.
  void saw(const StepCost& cost, std::int64_t rows, std::size_t guessed, std::size_t accepted, double paid);

  std::unique_ptr<Drafted> drafted;  // null: no smaller model guesses

 private:
  double hits_ = 1.4, tests_ = 2;  // recent guesses: how many were right, and how many were compared with a token
  double account_ = 0;
  bool opened_ = false;
};

// A smaller model with the same tokenizer that guesses the tokens of another. It uses the sequence's own sampling settings and random
// numbers, so that equal logits give equal tokens. It computes inside the steps of the other model, in its own cache.
class Drafter {
 public:
  // freed(): called without any lock when other callers of the smaller model may use pages that were held here.
  Drafter(std::shared_ptr<const void> owner, Runtime& runtime, std::function<void()> freed = {})
      : owner_(std::move(owner)), runtime_(runtime), freed_(std::move(freed)) {}

  struct Task {
    const Sequence* sequence;
    Drafted* drafted;
    std::size_t most;
    std::vector<std::int32_t>* guesses;
  };
  // Makes no guesses if its cache has no room, or while it still computes the prompt (some rows per call).
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
  double seconds_per_guess_ = 0;  // recent average
  Sampler sampler_;
  std::vector<float> hidden_, logits_;
};

}  // namespace pumice::engine
