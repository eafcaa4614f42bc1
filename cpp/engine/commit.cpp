#include "engine/commit.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/admission.h"
#include "engine/snapshots.h"

namespace pumice::engine {
namespace {

using Life = Sequence::Life;
using InStep = Sequence::InStep;

bool of_prompt(const Step::Part& part) { return part.rows > 1 || part.sequence->generated() == 0; }

}  // namespace

void Commit::step(Step& step, double seconds) {
  const double price = guess_price(step, seconds);
  count_rows(step);
  for (const Step::Part& each : step.parts()) part(step, each, static_cast<double>(each.guesses.size()) * price);
  add_up(seconds);
}

// Returns the cost of one guess in seconds, or 0 if the step has no guesses. The cost is the time that one more row adds to a step, plus
// the time that draft models and the draft head spent per guess. Also enters the measured times of the step into cost_.
double Commit::guess_price(const Step& step, double seconds) {
  std::int64_t guesses = 0, prompts = 0;
  decoding_ = 0;
  for (const Step::Part& part : step.parts()) {
    guesses += static_cast<std::int64_t>(part.guesses.size());
    (of_prompt(part) ? prompts : decoding_) += part.rows;
  }
  if (prompts == 0 && decoding_ + guesses <= kGuessedRows)
    cost_.saw(static_cast<std::int32_t>(decoding_ + guesses), seconds - step.guess_seconds());
  if (step.own_guesses() > 0) cost_.saw_own(step.own_seconds() / static_cast<double>(step.own_guesses()));
  return guesses == 0 ? 0 : cost_.row() + step.guess_seconds() / static_cast<double>(guesses);
}

void Commit::count_rows(Step& step) {
  for (const Step::Part& part : step.parts()) {
    RequestState& request = *part.sequence->request;
    if (part.error) roster_.fail(request, std::make_exception_ptr(*part.error));
    (of_prompt(part) ? request.share.prompt_rows : request.share.decode_rows) += part.rows;
  }
}

// Enters the computed pages of a sequence into the prefix tree, so that other sequences can share them. If the sequence has reached a
// position whose state must be kept (is_snapshot), the state enters the tree, too.
void Commit::publish(Sequence& s) {
  runtime_.pages->publish(s.table, s.known());
  if (is_snapshot(s, s.computed)) runtime_.pages->keep_state(s.table, s.computed);
}

void Commit::part(const Step& step, const Step::Part& part, double paid) {
  Sequence& s = *part.sequence;
  s.computed += part.rows;
  runtime_.pages->advance(s.table);
  publish(s);
  if (s.task) return text(s);
  if (!part.samples || s.request->error) return;
  if (s.generated() > 0) {
    if (s.in_step != InStep::leaving) take_guesses(step, part, paid);
    return;
  }
  std::size_t choice = part.first_choice;
  for (Sequence* each : s.prompt->fork(s, *runtime_.pages)) {
    const Choice& its = step.choice(choice++);
    if (each->in_step == InStep::leaving) continue;
    keep_row(*each, step.row(part, 0));
    take_choice(*each, its);
  }
}

// Handles a sequence that only computes a given text (TextTask), so that no token is chosen. The sequence ends after its last row. But if
// the task keeps its pages, the sequence is held until its caller closes the request.
void Commit::text(Sequence& s) {
  if (s.request->error || s.in_step == InStep::leaving) return;
  s.task->given = s.computed;
  if (s.pending() > 0) return;
  if (s.task->keeps_pages()) {
    s.life = Life::held;
  } else {
    roster_.end(s, Finish::none);
  }
}

void Commit::answers(std::span<const Answers::Part> parts) {
  for (const Answers::Part& part : parts) {
    Sequence& s = *part.sequence;
    s.row.clear();
    s.answer.clear();
    s.left_by_answer.clear();
    if (s.in_step == InStep::leaving) continue;
    if (part.error) {
      roster_.fail(*s.request, part.error);
    } else {
      take_token(s, part.choice);
    }
  }
  add_up(0);
}

// Keeps the hidden row from which the sequence's last id was chosen, because the model's draft head makes its next guess from this row.
// Does nothing if the draft head makes no guesses for the sequence.
void Commit::keep_row(Sequence& s, std::span<const float> row) {
  if (!s.guesses || !s.guesses->own) return;
  s.guesses->own->row.assign(row.begin(), row.end());
  s.guesses->own->after = s.computed;
}

void Commit::take_choice(Sequence& s, const Choice& choice) {
  if (s.params->shows_logits) {
    s.row = choice.row;
  } else {
    take_token(s, choice);
  }
}

void Commit::take_token(Sequence& s, const Choice& choice) {
  const GenerateParams& params = *s.params;
  s.request->share.sampled = true;
  if (!std::exchange(s.answered, true)) s.request->timings.first_token_seconds = s.request->seconds_to(Clock::now());
  if (std::ranges::find(params.eos_ids, choice.id) != params.eos_ids.end()) return roster_.end(s, Finish::eos);
  s.news.ids.push_back(choice.id);
  if (params.sampling.logprobs >= 0) {
    s.news.top_count = params.sampling.logprobs;
    s.news.logprobs.push_back(choice.logprob);
    s.news.top_ids.insert(s.news.top_ids.end(), choice.top_ids.begin(), choice.top_ids.end());
    s.news.top_logprobs.insert(s.news.top_logprobs.end(), choice.top_logprobs.begin(), choice.top_logprobs.end());
  }
  s.ids.push_back(choice.id);
  s.mu = choice.mu;
  ++counts_.decoded_tokens;
  if (params.sampling.penalises()) s.see(choice.id, true);
  bool complete = false;
  for (const auto& filter : s.filters) {
    try {
      complete = !filter->accept(choice.id) || complete;
      s.news.reasoning_cut = std::max(s.news.reasoning_cut, filter->reasoning_cut());
    } catch (...) {
      return roster_.fail(*s.request, std::current_exception());
    }
  }
  if (complete) return roster_.end(s, Finish::grammar);
  if (s.generated() >= params.max_new_tokens || static_cast<std::int64_t>(s.ids.size()) >= s.context) roster_.end(s, Finish::length);
}

// Takes the chosen tokens of a part with guesses: a token for each accepted guess, then the token that follows the last accepted guess.
void Commit::take_guesses(const Step& step, const Step::Part& part, double paid) {
  Sequence& s = *part.sequence;
  std::size_t taken = 0;
  while (taken < part.chosen && s.life == Life::running && s.in_step != InStep::leaving) {
    if (taken > 0) {
      ++s.computed;
      runtime_.pages->advance(s.table);
    }
    take_choice(s, step.choice(part.first_choice + taken++));
  }
  publish(s);
  if (taken > 0) keep_row(s, step.row(part, taken - 1));
  s.request->share.decode_rows += static_cast<std::int64_t>(taken) - 1;
  s.request->timings.drafted_tokens += static_cast<std::int64_t>(part.guesses.size());
  s.request->timings.accepted_tokens += static_cast<std::int64_t>(taken) - 1;
  if (s.guesses) s.guesses->saw(cost_, decoding_, part.guesses.size(), taken - 1, paid);
}

void Commit::add_up(double seconds) {
  for (const auto& request : roster_.requests()) {
    const auto [prompt_rows, decode_rows, sampled] = std::exchange(request->share, {});
    request->unread_steps += sampled;
    counts_.prompt_tokens += prompt_rows;
    if (prompt_rows + decode_rows == 0) continue;
    const double prompts = static_cast<double>(prompt_rows) / static_cast<double>(prompt_rows + decode_rows);
    Timings& t = request->timings;
    t.prefill_tokens += prompt_rows;
    t.decode_tokens += decode_rows;
    t.prefill_seconds += seconds * prompts;
    t.decode_seconds += seconds * (1 - prompts);
  }
}

}  // namespace pumice::engine
