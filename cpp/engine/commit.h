// What a finished step changes: ids and news of its sequences, their pages in the prefix cache, times and counts. Under the scheduler's
// lock.
#pragma once

#include <cstdint>
#include <span>

#include "engine/answers.h"
#include "engine/roster.h"
#include "engine/step.h"

namespace pumice::engine {

struct SchedulerStats {
  std::int64_t running = 0, waiting = 0, lagging = 0;  // requests: some sequence runs; none runs and some waits for pages; all sit out
  std::int64_t rows = 0;                               // of the last step
  std::int64_t steps = 0, prompt_tokens = 0, decoded_tokens = 0;  // since the start: computed, and chosen
  std::int64_t preempted = 0;                                     // sequences that gave their pages to others, and are computed again
  double busy_seconds = 0;                                        // in steps
};

class Commit {
 public:
  Commit(Runtime& runtime, Roster& roster, StepCost& cost, SchedulerStats& counts)
      : runtime_(runtime), roster_(roster), cost_(cost), counts_(counts) {}

  // Everything was computed and chosen: from here on the step counts.
  void step(Step& step, double seconds);
  // The tokens that were chosen from logits that callers have changed.
  void answers(std::span<const Answers::Part> parts);

 private:
  double guess_price(const Step& step, double seconds);
  void count_rows(Step& step);
  void part(const Step& step, const Step::Part& part, double paid);
  void text(Sequence& sequence);
  void take_token(Sequence& sequence, const Choice& choice);
  void take_choice(Sequence& sequence, const Choice& choice);
  void take_guesses(const Step& step, const Step::Part& part, double paid);
  void add_up(double seconds);

  Runtime& runtime_;
  Roster& roster_;
  StepCost& cost_;
  SchedulerStats& counts_;
  std::int64_t decoding_ = 0;  // rows of the step that are neither guesses nor of prompts
};

}  // namespace pumice::engine
