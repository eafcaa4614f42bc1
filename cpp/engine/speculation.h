// Guessing the next tokens of a sequence, so that one step can compute several of its rows.
//
// Nothing is changed by it: each row's token is chosen as it would be alone (its draw is a function of seed, stream and place), and the
// next row counts only where that token is the one that was guessed (Leviathan et al. 2023 accept by chance instead, which keeps the
// distribution and not the tokens). What is guessed comes from the sequence's own ids (prompt lookup), from a smaller model (Drafter), or
// from a grammar that allows one text alone (TokenFilter::foreseen).
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

struct Speculation {                              // of a call
  std::int32_t matching = 0;                      // ids that must stand elsewhere too for a lookup; 0: none is made
  std::int32_t most = 8;                          // guesses of a step
  std::shared_ptr<Drafter> drafter;               // null: no model
  bool foreseen = true;                           // what a grammar leaves no choice of but where its tokens are cut
  bool always = false;                            // whether it pays or not. For tests and bench, as is `replay`:
  std::vector<std::vector<std::int32_t>> replay;  // by sequence: these are the guesses, whatever the drafter says
  bool on() const { return matching > 0 || drafter || !replay.empty(); }
};

// What followed the latest of the longest matches of the text's end in the text; at least `matching` ids long, else nothing. Where it runs
// into the end itself (the text repeats), it goes on from its beginning.
void look_up(std::span<const std::int32_t> ids, std::int32_t matching, std::size_t most, std::vector<std::int32_t>& guesses);

// Seconds of steps that only decode, by rows: a line through those of late.
class StepCost {
 public:
  void saw(std::int32_t rows, double seconds);
  bool known() const { return weight_ > 0; }
  double row() const;  // one more
  double step(double rows) const;

 private:
  double weight_ = 0, rows_ = 0, seconds_ = 0, rows2_ = 0, rows_seconds_ = 0;
  double fixed_rows_ = 3;  // rows that take as long as what is paid once a step: what a CPU showed, until steps differ
};

// Keys and values of a sequence in its drafter's cache.
struct Drafted {
  std::shared_ptr<Drafter> drafter;  // whose cache it is
  PageTable table;
  std::vector<std::int32_t> ids;  // whose keys and values they are
  SamplingParams sampling;        // the sequence's, for this vocabulary
  bool ready = false;             // `sampling` is made
};

// How a sequence's guesses fare. It has an account of seconds: what rows of guesses cost is paid from it, what accepted ones spared comes
// in, and 1.5 % of each step. So where nothing is accepted, a sequence loses one step and these 1.5 %, and no more.
class Guesses {
 public:
  // How many the next step should have, where a step computes `rows` rows that decode, and a guess costs `extra` seconds beside its row.
  std::int32_t wanted(const StepCost& cost, std::int64_t rows, double extra, std::int32_t most);
  // Of a step of `rows` rows that no guess is among; paid: what these guesses cost.
  void saw(const StepCost& cost, std::int64_t rows, std::size_t guessed, std::size_t accepted, double paid);

  std::unique_ptr<Drafted> drafted;  // null: no smaller model guesses

 private:
  double hits_ = 1.4, tests_ = 2;  // of late: guesses that were right, of those that a token was chosen beside
  double account_ = 0;
  bool opened_ = false;
};

// A smaller model with the same tokenizer that guesses what another one says, step by step: with the sequence's own sampling and random
// numbers, so that it says the same wherever both see the same. It computes in the other's steps, in its own cache.
class Drafter {
 public:
  // freed(): other callers of the smaller model may have pages that were held here. Called without any lock.
  Drafter(std::shared_ptr<const void> owner, Runtime& runtime, std::function<void()> freed = {})
      : owner_(std::move(owner)), runtime_(runtime), freed_(std::move(freed)) {}

  struct Task {
    const Sequence* sequence;
    Drafted* drafted;
    std::size_t most;
    std::vector<std::int32_t>* guesses;
  };
  // Where its cache has no room, or a prompt is still to be read (some rows of it a call), there are no guesses.
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
  double seconds_per_guess_ = 0;  // of one sequence in one step, of late
  Sampler sampler_;
  std::vector<float> hidden_, logits_;
};

}  // namespace pumice::engine
