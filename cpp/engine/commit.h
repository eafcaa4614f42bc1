// Enters the results of a finished step: new ids and news into its sequences, their pages into the prefix cache, and the step's time and
// counts into the statistics. The caller holds the scheduler's lock.
#pragma once

#include <cstdint>
#include <span>

#include "engine/answers.h"
#include "engine/roster.h"
#include "engine/step.h"

namespace pumice::engine {

struct SchedulerStats {
  std::int64_t running = 0;  // requests with at least one running sequence
  std::int64_t waiting = 0;  // requests without a running sequence, but with one that waits for pages
  std::int64_t lagging = 0;  // requests whose sequences all sit out
  std::int64_t rows = 0;     // rows of the last step
  std::int64_t steps = 0, prompt_tokens = 0,
               decoded_tokens = 0;  // sums since the start: prompt rows that were computed, and tokens that were chosen
  std::int64_t preempted = 0;       // sequences that lost their pages to others and are computed again
  double busy_seconds = 0;          // sum over all steps
};

class Commit {
 public:
  Commit(Runtime& runtime, Roster& roster, StepCost& cost, SchedulerStats& counts)
      : runtime_(runtime), roster_(roster), cost_(cost), counts_(counts) {}

  // Enters a step that was computed and whose tokens are all chosen.
  void step(Step& step, double seconds);
  // Enters tokens that were chosen from logits that callers have changed.
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
  std::int64_t decoding_ = 0;  // rows of the step without those of prompts and guesses
};

}  // namespace pumice::engine
