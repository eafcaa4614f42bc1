#include "engine/speculation.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "engine/sequence.h"

namespace pumice::engine {
namespace {

constexpr std::size_t kLongestMatch = 32;
constexpr double kForgets = 0.95;  // StepCost::saw() multiplies the weight of earlier steps by this
// Each step adds kFree to the account in Guesses. kFirst is the account's first balance, and kMostSaved its largest. The unit is the
// duration of a step.
constexpr double kFree = 0.015, kFirst = 1, kMostSaved = 4;
// A sequence gets guesses only if the drafter's cache lacks at most this many rows of the sequence. If the cache lacks more, the missing
// rows are first computed in runs of their own.
constexpr std::int64_t kCatchUp = 64;

}  // namespace

void look_up(std::span<const std::int32_t> ids, std::int32_t matching, std::size_t most, std::vector<std::int32_t>& guesses) {
  const std::size_t size = ids.size(), first = guesses.size();
  std::size_t longest = 0, next = 0;
  for (std::size_t end = size - 1; end-- > 0;) {
    if (ids[end] != ids[size - 1]) continue;
    std::size_t length = 1;
    while (length < kLongestMatch && length <= end && ids[end - length] == ids[size - 1 - length]) ++length;
    if (length <= longest) continue;
    longest = length;
    next = end + 1;
    if (length == kLongestMatch) break;
  }
  if (longest < static_cast<std::size_t>(matching)) return;
  for (std::size_t i = 0; i < most; ++i) guesses.push_back(next + i < size ? ids[next + i] : guesses[first + next + i - size]);
}

// ---------------------------------------------------------------- what pays
void StepCost::saw(std::int32_t rows, double seconds) {
  const double r = rows;
  for (double* sum : {&weight_, &rows_, &seconds_, &rows2_, &rows_seconds_}) *sum *= kForgets;
  weight_ += 1;
  rows_ += r;
  seconds_ += seconds;
  rows2_ += r * r;
  rows_seconds_ += r * seconds;
  const double mean_rows = rows_ / weight_, mean = seconds_ / weight_, spread = rows2_ / weight_ - mean_rows * mean_rows;
  if (spread < 0.5) return;
  const double slope = std::clamp((rows_seconds_ / weight_ - mean_rows * mean) / spread, mean / (mean_rows + 50), mean / mean_rows);
  fixed_rows_ = mean / slope - mean_rows;
}

double StepCost::row() const { return known() ? seconds_ / weight_ / (fixed_rows_ + rows_ / weight_) : 0; }
double StepCost::step(double rows) const { return row() * (fixed_rows_ + rows); }

std::int32_t Guesses::wanted(const StepCost& cost, std::int64_t rows, double extra, std::int32_t most) {
  if (!cost.known() || rows < 1) return 0;
  const double step = cost.step(static_cast<double>(rows)), price = cost.row() + extra;
  if (!std::exchange(opened_, true)) account_ = kFirst * step;
  // Adds guesses as long as each one yields at least as many tokens per second as the step with only the guesses before it. The n-th guess
  // is right with a probability of p^n, where p is the fraction of recent guesses that were right.
  double chance = 1, tokens = static_cast<double>(rows), seconds = step;
  std::int32_t count = 0;
  while (count < most && (count + 1) * price <= account_ && (chance *= hits_ / tests_) * seconds >= price * tokens) {
    ++count;
    tokens += chance;
    seconds += price;
  }
  return count;
}

void Guesses::saw(const StepCost& cost, std::int64_t rows, std::size_t guessed, std::size_t accepted, double paid) {
  const double step = cost.step(static_cast<double>(rows));
  account_ = std::min(account_ - paid + (kFree + static_cast<double>(accepted)) * step, kMostSaved * step);
  const double keeps = guessed > 0 ? 0.9 : 0.98;  // weight of earlier results; steps without guesses forget them more slowly
  hits_ = 1.4 + (hits_ - 1.4) * keeps;
  tests_ = 2 + (tests_ - 2) * keeps;
  hits_ += static_cast<double>(accepted);
  tests_ += static_cast<double>(std::min(guessed, accepted + 1));
}

void StepCost::saw_own(double seconds_per_guess) {
  own_guess_ = own_guess_ == 0 ? seconds_per_guess : 0.8 * own_guess_ + 0.2 * seconds_per_guess;
}

namespace {

// Returns a sequence's sampling parameters as a drafting model with `vocab` tokens must use them.
SamplingParams for_guesses(const Sequence& s, std::int32_t vocab) {
  SamplingParams sampling = s.params->sampling;
  sampling.logprobs = -1;
  sampling.dry_multiplier = 0;  // the model that chooses the real token applies DRY
  std::erase_if(sampling.logit_bias, [&](const auto& bias) { return bias.first >= vocab; });
  return sampling;
}

// Chooses a guess from a row of logits and appends it to `guesses`. `guessed` is the number of guesses that the sequence has in this step
// already. If no further guess is useful, returns false and appends nothing.
bool add_guess(Sampler& sampler, const SamplingParams& sampling, std::span<float> logits, const Sequence& s, std::size_t guessed,
               std::vector<std::int32_t>& guesses) {
  const Draw draw{s.draw.seed, s.draw.stream, static_cast<std::uint64_t>(s.generated()) + guessed};
  TokenCounts seen;
  if (s.params->sampling.penalises()) {
    seen = s.seen;
    for (const std::int32_t id : guesses) seen.add(id, true);
  }
  Choice choice;
  try {
    sampler.choose(sampling, logits, seen, draw, choice, {.mu = s.mu});
  } catch (const Error&) {  // the row has a NaN, or a bias forbids the whole vocabulary
    return false;
  }
  const auto& ends = s.params->eos_ids;  // an end token is not guessed, because no token follows it
  if (std::find(ends.begin(), ends.end(), choice.id) != ends.end()) return false;
  guesses.push_back(choice.id);
  return true;
}

bool no_memory(const Error& error) { return error.kind() == ErrorKind::out_of_memory || error.kind() == ErrorKind::out_of_device_memory; }

}  // namespace

// ---------------------------------------------------------------- a smaller model
bool Drafter::prepare(Task& task) {
  PagePool& pool = *runtime_.pages;
  const Sequence& s = *task.sequence;
  Drafted& d = *task.drafted;
  if (!d.ready) {
    d.sampling = for_guesses(s, runtime_.pipeline.vocab_size());
    d.ready = true;
  }
  if (!pool.unpark(d.table)) d.ids.clear();
  const auto room = static_cast<std::int64_t>(s.ids.size() + task.most);
  if (room > std::min<std::int64_t>(runtime_.n_ctx, pool.max_tokens())) return false;
  const auto same = std::mismatch(d.ids.begin(), d.ids.end(), s.ids.begin(), s.ids.end() - 1).first - d.ids.begin();
  d.ids.resize(static_cast<std::size_t>(same));
  if (d.table.pages().empty()) {
    const auto reused = pool.acquire(d.table, s.ids, PagePool::kAll, 0, runtime_.rope_stage(s.length));
    if (!reused) return false;
    d.ids.assign(s.ids.begin(), s.ids.begin() + *reused);
  }
  return pool.extend(d.table, room);
}

// Computes rows of the tasks' sequences that the drafter's cache lacks, at most `most_rows` per task. Then guesses the next token for each
// task whose rows are all in the cache. `guessed` is the number of guesses that each of these tasks has already. Returns false if the
// device has no memory for so many rows.
bool Drafter::run(std::span<Task* const> tasks, std::size_t guessed, std::int64_t most_rows, const Cancel& cancel) {
  std::vector<std::int32_t> ids, selected;
  std::vector<Segment> segments;
  std::vector<Task*> reached;
  for (Task* task : tasks) {
    const Sequence& s = *task->sequence;
    Drafted& d = *task->drafted;
    const std::size_t size = s.ids.size() + task->guesses->size(), past = d.ids.size();
    const std::size_t rows = std::min(size - past, static_cast<std::size_t>(most_rows));
    segments.push_back({.first = static_cast<std::int32_t>(ids.size()),
                        .rows = static_cast<std::int32_t>(rows),
                        .past = static_cast<std::int32_t>(past),
                        .pages = d.table.pages(),
                        .length = s.length});
    for (std::size_t i = past; i < past + rows; ++i) ids.push_back(i < s.ids.size() ? s.ids[i] : (*task->guesses)[i - s.ids.size()]);
    if (past + rows < size) continue;
    selected.push_back(static_cast<std::int32_t>(ids.size()) - 1);
    reached.push_back(task);
  }
  if (selected.empty()) selected.push_back(static_cast<std::int32_t>(ids.size()) - 1);
  const auto width = static_cast<std::size_t>(runtime_.pipeline.hidden_size());
  const auto vocab = static_cast<std::size_t>(runtime_.pipeline.vocab_size());
  hidden_.resize(selected.size() * width);
  const auto spaces = runtime_.spaces.take(Crew::team, cancel);
  const Batch batch{.rows = static_cast<std::int32_t>(ids.size()), .ids = ids, .segments = segments, .selected = selected};
  if (!runtime_.body(spaces[0], batch, hidden_, cancel)) return false;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto first = ids.begin() + segments[i].first;
    tasks[i]->drafted->ids.insert(tasks[i]->drafted->ids.end(), first, first + segments[i].rows);
  }
  const auto block = static_cast<std::size_t>(runtime_.head_rows());
  for (std::size_t row = 0; row < reached.size(); row += block) {
    const std::size_t rows = std::min(block, reached.size() - row);
    logits_.resize(rows * vocab);
    runtime_.pipeline.head(spaces[0], std::span(hidden_).subspan(row * width, rows * width), logits_, cancel);
    for (std::size_t i = 0; i < rows; ++i) {
      Task& task = *reached[row + i];
      const auto logits = std::span(logits_).subspan(i * vocab, vocab);
      if (!add_guess(sampler_, task.drafted->sampling, logits, *task.sequence, guessed, *task.guesses)) task.most = task.guesses->size();
    }
  }
  return true;
}

void Drafter::propose(std::span<Task> tasks, const Cancel& cancel) {
  std::vector<Task*> active;
  const auto left = [&] {  // removes the tasks that have enough guesses; returns false if no task is left
    std::erase_if(active, [](const Task* t) { return t->guesses->size() >= t->most; });
    return !active.empty();
  };
  try {
    for (Task& task : tasks)
      if (prepare(task)) active.push_back(&task);
    // If the cache lacks more than kCatchUp rows of a sequence, the sequence gets no guesses now. Instead, a separate run computes rows of
    // the first such sequence.
    std::vector<Task*> behind;
    for (Task* task : active)
      if (static_cast<std::int64_t>(task->sequence->ids.size() - task->drafted->ids.size()) > kCatchUp) behind.push_back(task);
    if (!behind.empty()) {
      std::erase_if(active, [&](Task* t) { return std::find(behind.begin(), behind.end(), t) != behind.end(); });
      run(std::span(behind).first(1), 0, std::max<std::int64_t>(kCatchUp, runtime_.pace.rows_within(0.05, kCatchUp)), cancel);
      behind[0]->guesses->clear();
    }
    const auto start = std::chrono::steady_clock::now();
    std::size_t guesses = 0, steps = 0;
    for (const Task* task : active) guesses += task->most;
    while (left() && run(active, steps, kCatchUp, cancel)) ++steps;
    if (steps > 0 && guesses > 0) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(guesses);
      seconds_per_guess_ = seconds_per_guess_ == 0 ? seconds : 0.8 * seconds_per_guess_ + 0.2 * seconds;
    }
  } catch (const Error& error) {
    if (!no_memory(error)) throw;
  }
  for (Task& task : tasks) runtime_.pages->park(task.drafted->table);
  if (freed_) freed_();
}

void Drafter::release(Drafted& drafted) {
  runtime_.pages->release(drafted.table, drafted.ids);
  if (freed_) freed_();
}

// ---------------------------------------------------------------- the model's own head
// Guesses one token for each task. `guessed` is the number of guesses that each task has already.
void DraftHead::run(Runtime& runtime, std::span<Task* const> tasks, std::size_t guessed, const Cancel& cancel) {
  const auto width = static_cast<std::size_t>(runtime.pipeline.draft_width()),
             vocab = static_cast<std::size_t>(runtime.pipeline.vocab_size());
  const bool fixed = runtime.pipeline.drafts_from_one_position();
  ids_.clear();
  segments_.clear();
  for (const Task* task : tasks) {
    const Sequence& s = *task->sequence;
    segments_.push_back({.first = static_cast<std::int32_t>(ids_.size()),
                         .rows = 1,
                         .past = static_cast<std::int32_t>(fixed ? s.ids.size() - 2 : s.ids.size() - 1 + guessed),
                         .pages = s.table.pages(),
                         .length = s.length,
                         .ahead = fixed ? 1 : 0});
    ids_.push_back(guessed == 0 ? s.ids.back() : task->guesses->back());
    if (guessed == 0) in_.insert(in_.end(), task->own->row.begin(), task->own->row.end());
  }
  out_.resize(tasks.size() * width);
  const auto spaces = runtime.spaces.take(Crew::team, cancel);
  const Batch batch{.rows = static_cast<std::int32_t>(tasks.size()), .ids = ids_, .segments = segments_};
  runtime.pipeline.draft(spaces[0], runtime.pages->caches(), batch, guessed == 0, in_, out_, cancel);
  const auto block = static_cast<std::size_t>(runtime.head_rows());
  in_.clear();  // the loop below fills it with the output rows of the tasks that need more guesses
  for (std::size_t row = 0; row < tasks.size(); row += block) {
    const std::size_t rows = std::min(block, tasks.size() - row);
    logits_.resize(rows * vocab);
    runtime.pipeline.draft_logits(spaces[0], std::span(out_).subspan(row * width, rows * width), logits_, cancel);
    for (std::size_t i = 0; i < rows; ++i) {
      Task& task = *tasks[row + i];
      const auto logits = std::span(logits_).subspan(i * vocab, vocab);
      if (!add_guess(sampler_, task.own->sampling, logits, *task.sequence, guessed, *task.guesses)) task.most = task.guesses->size();
      if (task.guesses->size() >= task.most) continue;
      const auto own = std::span(out_).subspan((row + i) * width, width);
      in_.insert(in_.end(), own.begin(), own.end());
    }
  }
}

void DraftHead::propose(Runtime& runtime, std::span<Task> tasks, const Cancel& cancel) {
  std::vector<Task*> active;
  for (Task& task : tasks) {
    const Sequence& s = *task.sequence;
    if (task.own->after != s.computed || s.pending() != 1) continue;
    if (!std::exchange(task.own->ready, true)) task.own->sampling = for_guesses(s, runtime.pipeline.vocab_size());
    active.push_back(&task);
  }
  in_.clear();
  try {
    for (std::size_t guessed = 0; !active.empty(); ++guessed) {
      run(runtime, active, guessed, cancel);
      std::erase_if(active, [](const Task* task) { return task->guesses->size() >= task->most; });
    }
  } catch (const Error& error) {
    if (!no_memory(error)) throw;
  }
}

}  // namespace pumice::engine
