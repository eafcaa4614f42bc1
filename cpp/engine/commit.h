// Applies the results of a finished step. New ids are appended to the sequences and become news for the callers. Computed pages enter the
// prefix cache. The step's duration and counts enter the statistics. The caller of these functions holds the scheduler's lock.
#pragma once

#include <cstdint>
#include <span>

#include "engine/answers.h"
#include "engine/roster.h"
#include "engine/step.h"

namespace pumice::engine {

struct SchedulerStats {
  std::int64_t running = 0;  // number of requests with a sequence that runs or is held (Sequence::Life)
  // Number of other requests with a sequence that waits for pages, because of Limits::running for its turn, or for the next plan after its
  // caller has read its tokens or answered.
  std::int64_t waiting = 0;
  std::int64_t lagging = 0;  // number of other unfinished requests, whose callers do not read tokens or do not answer with logits
  std::int64_t rows = 0;     // number of rows in the last step
  // Totals since the scheduler was made: number of steps, of computed prompt rows, and of chosen tokens.
  std::int64_t steps = 0, prompt_tokens = 0, decoded_tokens = 0;
  std::int64_t preempted = 0;  // how often a sequence lost its pages to another one and had to be computed again
  double busy_seconds = 0;     // total duration of all steps
};

class Commit {
 public:
  Commit(Runtime& runtime, Roster& roster, StepCost& cost, SchedulerStats& counts)
      : runtime_(runtime), roster_(roster), cost_(cost), counts_(counts) {}

  // Applies the results of a step for which Step::run() has returned true. `seconds` is the duration of the step.
  void step(Step& step, double seconds);
  // Applies the tokens that Answers::choose() has chosen from the logits that callers have set (Request::answer).
  void answers(std::span<const Answers::Part> parts);

 private:
  double guess_price(const Step& step, double seconds);
  void count_rows(Step& step);
  void publish(Sequence& sequence);
  void part(const Step& step, const Step::Part& part, double paid);
  void text(Sequence& sequence);
  void take_token(Sequence& sequence, const Choice& choice);
  void take_choice(Sequence& sequence, const Choice& choice);
  void keep_row(Sequence& sequence, std::span<const float> row);
  void take_guesses(const Step& step, const Step::Part& part, double paid);
  void add_up(double seconds);

  Runtime& runtime_;
  Roster& roster_;
  StepCost& cost_;
  SchedulerStats& counts_;
  std::int64_t decoding_ = 0;  // number of decode rows in the step, guesses not included
};

}  // namespace pumice::engine
