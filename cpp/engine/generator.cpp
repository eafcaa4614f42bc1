#include "engine/generator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "core/error.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::int64_t kMostSequences = 65536;
constexpr std::int64_t kPromptRows = 32;      // of a step that prompts get at least, however many sequences decode
constexpr std::size_t kParallelSampling = 5;  // rows from which sampling on all workers beats waiting for a turn of the device

std::uint64_t system_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Generator::Generator(std::shared_ptr<Runtime> runtime, const std::vector<std::vector<std::int32_t>>& prompts, GenerateParams params)
    : runtime_(std::move(runtime)), params_(std::move(params)), seed_(params_.sampling.seed ? *params_.sampling.seed : system_seed()),
      from_top_(runtime_->pipeline.top_columns() > 0 &&
                params_.sampling.needs_only_top(std::min(model::kTopLogits, runtime_->pipeline.vocab_size() - 1))) {
  const Runtime& r = *runtime_;
  require(r.pages && r.pipeline.vocab_size() > 0, "this model cannot generate: it has no key-value cache or no output head");
  params_.sampling.validate(r.pipeline.vocab_size());
  require(params_.max_new_tokens >= 1, "max_new_tokens must be at least 1, not ", params_.max_new_tokens);
  require(params_.n >= 1 && params_.n <= kMostSequences, "n must be between 1 and ", kMostSequences, ", not ", params_.n);
  require(static_cast<std::int64_t>(prompts.size()) * params_.n <= kMostSequences, prompts.size(), " prompts x n=", params_.n,
          " are more than ", kMostSequences, " sequences: give them in several calls");
  for (const std::int32_t id : params_.eos_ids)
    require(id >= 0 && id < r.pipeline.vocab_size(), "eos id ", id, " is not in the vocabulary of ", r.pipeline.vocab_size());
  context_ = std::min<std::int64_t>(r.n_ctx, r.pages->max_tokens());

  // Equal prompts of one call draw from different streams, different ones from the same: so a prompt's tokens are those that it would
  // get alone, and a prompt given twice gets two answers.
  std::map<std::span<const std::int32_t>, std::uint64_t,
           decltype([](auto a, auto b) { return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end()); })>
      streams;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<std::int32_t>& prompt = prompts[p];
    require(!prompt.empty(), "prompt ", p, " has no tokens");
    const auto size = static_cast<std::int64_t>(prompt.size());
    if (size + 1 > r.n_ctx)
      fail(ErrorKind::context_length, "prompt ", p, " has ", size, " tokens, the context holds ", r.n_ctx,
           " and needs room for one more: shorten the prompt, or load with a larger n_ctx=");
    r.check_ids(prompt, "prompt", static_cast<std::int64_t>(p));
    r.pages->check_fits(size + 1);
    prompt_tokens_.push_back(static_cast<std::int32_t>(size));
    std::uint64_t& stream = streams[prompt];
    for (std::int32_t i = 0; i < params_.n; ++i) {
      Sequence& s = sequences_.emplace_back();
      s.index = s.news.sequence = static_cast<std::int32_t>(sequences_.size()) - 1;
      s.prompt_tokens = s.length = static_cast<std::int32_t>(size);
      s.stream = stream++;
      s.state = i == 0 ? State::waits : State::follows;
      s.ids = prompt;
      s.changed = ChangedIds(static_cast<std::size_t>(model::top_reported(r.pipeline.vocab_size())));
      if (from_top_)
        for (const auto& [id, bias] : params_.sampling.logit_bias) s.changed.add(id);
      if (params_.sampling.penalises())
        for (const std::int32_t id : prompt) see(s, id, false);
    }
  }
  reused_tokens_.assign(prompts.size(), -1);
  done_ = sequences_.empty();
}

Generator::~Generator() {
  try {
    close();
  } catch (...) {  // no memory for the bookkeeping: the tables still give their pages back
  }
}

void Generator::close() {
  const std::lock_guard lock(mutex_);
  for (Sequence& s : sequences_) {
    if (s.state != State::ended) end(s, Finish::none);
    s.news.ids.clear();
  }
  done_ = true;
}

void Generator::finish(std::int32_t sequence) {
  const std::lock_guard lock(mutex_);
  require(sequence >= 0 && sequence < sequences(), "there is no sequence ", sequence, ": ", sequences(), " were asked for");
  Sequence& s = sequences_[sequence];
  if (s.state == State::ended) return;
  const bool leads = s.state != State::follows && s.generated() == 0;
  end(s, Finish::none);
  s.news = {.sequence = sequence};
  if (leads) {  // the next one computes the prompt in its place
    for (std::int32_t i = sequence + 1; i < sequences() && i / params_.n == sequence / params_.n; ++i) {
      if (sequences_[i].state != State::follows) continue;
      sequences_[i].state = State::waits;
      break;
    }
  }
  done_ = std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& each) {
    return each.state == State::ended && each.news.ids.empty() && each.news.finish == Finish::none;
  });
}

bool Generator::done() const { return done_; }

std::vector<std::int32_t> Generator::prompt_tokens() const { return prompt_tokens_; }

std::vector<std::int32_t> Generator::reused_tokens() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t> reused = reused_tokens_;
  for (std::int32_t& tokens : reused) tokens = std::max(tokens, 0);
  return reused;
}

Timings Generator::timings() const {
  const std::lock_guard lock(mutex_);
  return timings_;
}

// ---------------------------------------------------------------- pages
void Generator::start_again(Sequence& sequence) {
  runtime_->pages->release(sequence.table, sequence.known());
  sequence.computed = 0;
  sequence.state = State::waits;
}

void Generator::end(Sequence& sequence, Finish finish) {
  runtime_->pages->release(sequence.table, sequence.known());
  sequence.computed = 0;
  sequence.state = State::ended;
  sequence.news.finish = finish;
}

// Sequences that have outgrown the lengths for which their keys turned are computed anew, once.
void Generator::follow_rope() {
  for (Sequence& s : sequences_) {
    if (s.state == State::ended || !runtime_->rope_outgrown(s.length, static_cast<std::int64_t>(s.ids.size()))) continue;
    s.length = static_cast<std::int32_t>(s.ids.size());
    if (s.state == State::runs) start_again(s);
  }
}

// Every running sequence needs a page for its next token; where there is none, the last ones step back.
void Generator::make_room() {
  for (Sequence& s : sequences_) {
    while (s.state == State::runs && !runtime_->pages->extend(s.table, static_cast<std::int64_t>(s.ids.size()))) {
      const auto last =
          std::find_if(sequences_.rbegin(), sequences_.rend(), [](const Sequence& each) { return each.state == State::runs; });
      start_again(*last);
    }
  }
}

// Does a sequence that runs now compute a page that `sequence` could share a few steps later?
bool Generator::prefix_on_its_way(const Sequence& sequence) const {
  std::int64_t cached = -1;
  for (const Sequence& other : sequences_) {
    if (other.state != State::runs || other.pending() <= 1) continue;
    if (runtime_->rope_stage(other.length) != runtime_->rope_stage(sequence.length)) continue;
    const auto differ = std::mismatch(other.ids.begin(), other.ids.end(), sequence.ids.begin(), sequence.ids.end()).first;
    const std::int64_t common = (differ - other.ids.begin()) / kPageTokens * kPageTokens;
    if (common <= other.computed) continue;
    if (cached < 0) cached = runtime_->pages->cached_tokens(sequence.ids, runtime_->rope_stage(sequence.length));
    if (common > cached) return true;
  }
  return false;
}

void Generator::admit(std::int64_t rows_left) {
  PagePool& pool = *runtime_->pages;
  std::int64_t running = std::count_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.state == State::runs; });
  for (Sequence& s : sequences_) {
    if (rows_left <= 0) return;
    if (s.state != State::waits || prefix_on_its_way(s)) continue;
    // Those that run must be able to grow by a page each, or the newcomer would soon have to go again.
    const auto reused = pool.acquire(s.table, s.ids, true, running, runtime_->rope_stage(s.length));
    if (!reused) return;
    s.computed = *reused;
    s.state = State::runs;
    ++running;
    rows_left -= s.pending();
    std::int32_t& first_time = reused_tokens_[s.index / params_.n];
    if (first_time < 0) {
      first_time = *reused;
      pool.count_prompt(s.prompt_tokens, *reused);
    }
  }
}

// ---------------------------------------------------------------- a step
template <class Visit>
void Generator::each_sharing(const Sequence& first, Visit&& visit) {
  visit(sequences_[first.index]);
  if (first.generated() > 0) return;
  for (std::int32_t i = first.index + 1; i < sequences() && i / params_.n == first.index / params_.n; ++i)
    if (sequences_[i].state == State::follows) visit(sequences_[i]);
}

// One row of each sequence that decodes, then chunks of prompts, first come, first served; no more rows than are given of each.
void Generator::assemble(std::int64_t decode_rows, std::int64_t prompt_rows) {
  parts_.clear();
  batch_ids_.clear();
  segments_.clear();
  selected_.clear();
  std::size_t choices = 0;
  for (const bool decodes : {true, false}) {
    std::int64_t& rows_left = decodes ? decode_rows : prompt_rows;
    for (Sequence& s : sequences_) {
      if (s.state != State::runs || (s.pending() == 1) != decodes) continue;
      const auto rows = static_cast<std::int32_t>(std::min(s.pending(), rows_left));
      if (rows <= 0) continue;
      rows_left -= rows;
      const bool samples = rows == s.pending();
      const auto first = static_cast<std::int32_t>(batch_ids_.size());
      parts_.push_back({&s, rows, samples, choices});
      segments_.push_back({.first = first, .rows = rows, .past = static_cast<std::int32_t>(s.computed), .pages = s.table.pages(),
                           .length = s.length});
      batch_ids_.insert(batch_ids_.end(), s.ids.begin() + s.computed, s.ids.begin() + s.computed + rows);
      if (!samples) continue;
      selected_.push_back(first + rows - 1);
      each_sharing(s, [&](Sequence&) { ++choices; });
    }
  }
  choices_.resize(std::max(choices, choices_.size()));
}

// The largest logits of the parts that sample now, and those that penalties or bias change.
void Generator::run_top(RunSpace& space, std::span<const float> hidden, std::span<float> rows, const Cancel& cancel) {
  reported_.clear();
  reported_first_.assign(1, 0);
  for (const StepPart* part : sampling_) {
    const auto ids = part->sequence->changed.ids();
    reported_.insert(reported_.end(), ids.begin(), ids.end());
    reported_first_.push_back(static_cast<std::int32_t>(reported_.size()));
  }
  runtime_->pipeline.top(space, hidden, reported_, reported_first_, rows, cancel);
}

// Heads and choices of all parts that reached their last id, a block of rows at a time. Changes no sequence.
void Generator::sample(RunSpace& space, const Cancel& cancel) {
  const Pipeline& pipeline = runtime_->pipeline;
  Backend& device = pipeline.widest();
  const auto width = static_cast<std::size_t>(pipeline.hidden_size()), vocab = static_cast<std::size_t>(pipeline.vocab_size());
  const auto block = static_cast<std::size_t>(runtime_->head_rows());
  samplers_.resize(static_cast<std::size_t>(std::max(1, device.workers())));
  std::size_t row = 0;
  auto part = parts_.begin();
  while (row < selected_.size()) {
    const std::size_t rows = std::min(block, selected_.size() - row);
    std::vector<StepPart*>& now = sampling_;
    now.clear();
    for (; now.size() < rows; ++part)
      if (part->samples) now.push_back(&*part);
    const bool top = from_top_ && std::all_of(now.begin(), now.end(), [](const StepPart* p) { return p->sequence->changed.fit(); });
    const std::size_t columns = top ? static_cast<std::size_t>(pipeline.top_columns()) : vocab;
    if (logits_.size() < rows * columns) logits_.resize(rows * columns);
    const std::span<float> logits = std::span(logits_).first(rows * columns);
    const auto hidden = std::span<const float>(hidden_).subspan(row * width, rows * width);
    if (top) {
      run_top(space, hidden, logits, cancel);
    } else {
      pipeline.head(space, hidden, logits, cancel);
    }
    const auto choose = [&](std::int64_t i, int worker) {
      std::unique_ptr<Sampler>& sampler = samplers_[worker];
      if (!sampler) sampler = std::make_unique<Sampler>(params_.sampling, seed_);
      std::size_t choice = now[i]->first_choice;
      each_sharing(*now[i]->sequence, [&](Sequence& s) {
        try {
          const auto row_logits = logits.subspan(static_cast<std::size_t>(i) * columns, columns);
          const auto step = static_cast<std::uint64_t>(s.generated());
          Choice& chosen = choices_[choice++];
          if (top) {  // followers share a prompt, and so what changes
            sampler->choose(TopRow{row_logits, model::kTopLogits}, now[i]->sequence->changed.ids(), pipeline.vocab_size(), s.seen, s.stream,
                            step, chosen);
          } else {
            sampler->choose(row_logits, s.seen, s.stream, step, chosen);
          }
        } catch (const Error& error) {
          fail(error.kind(), "sequence ", s.index, ", position ", s.ids.size(), ": ", error.what());
        }
      });
    };
    if (rows < kParallelSampling) {
      for (std::size_t i = 0; i < rows; ++i) choose(static_cast<std::int64_t>(i), 0);
    } else {
      device.parallel(static_cast<std::int64_t>(rows), choose, cancel);
    }
    row += rows;
  }
}

void Generator::see(Sequence& s, std::int32_t id, bool generated) const {
  s.seen.add(id, generated);
  if (from_top_) s.changed.add(id);
}

void Generator::take_choice(Sequence& s, const Choice& choice) {
  if (std::find(params_.eos_ids.begin(), params_.eos_ids.end(), choice.id) != params_.eos_ids.end()) return end(s, Finish::eos);
  s.news.ids.push_back(choice.id);
  if (params_.sampling.logprobs >= 0) {
    s.news.top_count = params_.sampling.logprobs;
    s.news.logprobs.push_back(choice.logprob);
    s.news.top_ids.insert(s.news.top_ids.end(), choice.top_ids.begin(), choice.top_ids.end());
    s.news.top_logprobs.insert(s.news.top_logprobs.end(), choice.top_logprobs.begin(), choice.top_logprobs.end());
  }
  s.ids.push_back(choice.id);
  if (params_.sampling.penalises()) see(s, choice.id, true);
  if (s.generated() >= params_.max_new_tokens || static_cast<std::int64_t>(s.ids.size()) >= context_) end(s, Finish::length);
}

// Everything was computed and chosen: from here on the step counts.
void Generator::commit() {
  PagePool& pool = *runtime_->pages;
  for (const StepPart& part : parts_) {
    Sequence& s = *part.sequence;
    s.computed += part.rows;
    pool.publish(s.table, s.known());
    if (!part.samples) continue;
    std::size_t choice = part.first_choice;
    // Followers first: they copy the first one's last page before it goes on in it.
    each_sharing(s, [&](Sequence& each) {
      const std::size_t mine = choice++;
      if (&each == &s) return;
      bool shared = false;
      try {
        shared = pool.fork(s.table, static_cast<std::int32_t>(s.computed), each.table);
      } catch (const Error&) {  // it computes its prompt itself; a device that cannot do that either says so there
      }
      each.state = shared ? State::runs : State::waits;
      each.computed = shared ? s.computed : 0;
      take_choice(each, choices_[mine]);
    });
    take_choice(s, choices_[part.first_choice]);
  }
}

Generator::Outcome Generator::step(const Cancel& cancel) {
  const auto start = Clock::now();
  follow_rope();
  make_room();
  const std::int64_t running =
      std::count_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.state == State::runs; });
  const std::int64_t most = runtime_->pace.most();
  const std::int64_t prefill = std::max<std::int64_t>(0, std::min<std::int64_t>(runtime_->pace.rows(), most - running));
  const std::int64_t unfinished = std::accumulate(
      sequences_.begin(), sequences_.end(), std::int64_t{0},
      [](std::int64_t sum, const Sequence& s) { return sum + (s.state == State::runs && s.pending() > 1 ? s.pending() : 0); });
  admit(prefill - unfinished);
  const bool prompts = std::any_of(sequences_.begin(), sequences_.end(),
                                   [](const Sequence& s) { return s.state == State::runs && s.pending() > 1; });
  const std::int64_t prompt_rows_left = prompts ? std::max(prefill, std::min(kPromptRows, (most + 1) / 2)) : 0;
  assemble(most - prompt_rows_left, prompt_rows_left);
  if (parts_.empty()) return Outcome::starved;

  const auto spaces = runtime_->spaces.take(Crew::team, cancel);
  const bool samples = !selected_.empty();
  if (!samples) selected_.push_back(static_cast<std::int32_t>(batch_ids_.size()) - 1);  // a run has at least one row to give
  const std::size_t values = selected_.size() * static_cast<std::size_t>(runtime_->pipeline.hidden_size());
  if (hidden_.size() < values) hidden_.resize(values);
  const auto rows = static_cast<std::int32_t>(batch_ids_.size());
  const Batch batch{.rows = rows, .ids = batch_ids_, .segments = segments_, .selected = selected_};
  if (!runtime_->body(spaces[0], batch, std::span(hidden_).first(values), cancel)) return Outcome::computed;  // again, with fewer
  if (samples) sample(spaces[0], cancel);

  std::int64_t prompt_rows = 0;
  for (const StepPart& part : parts_)
    if (part.rows > 1 || part.sequence->generated() == 0) prompt_rows += part.rows;
  commit();
  const double seconds = seconds_since(start), share = static_cast<double>(prompt_rows) / rows;
  timings_.prefill_tokens += prompt_rows;
  timings_.decode_tokens += rows - prompt_rows;
  timings_.prefill_seconds += seconds * share;
  timings_.decode_seconds += seconds * (1 - share);
  return samples ? Outcome::sampled : Outcome::computed;
}

// ---------------------------------------------------------------- calls
void Generator::resume() {
  for (Sequence& s : sequences_) {
    if (s.state == State::runs && !runtime_->pages->unpark(s.table)) {
      s.computed = 0;
      s.state = State::waits;
    }
  }
}

void Generator::pause() noexcept {
  for (Sequence& s : sequences_) {
    try {
      if (s.state == State::runs) runtime_->pages->park(s.table);
    } catch (...) {  // no memory for the list of the parked: the pages stay held, as they were
    }
  }
}

std::vector<News> Generator::collect_news() {
  std::vector<News> all;
  bool ended = true;
  for (Sequence& s : sequences_) {
    ended = ended && s.state == State::ended;
    if (s.news.ids.empty() && s.news.finish == Finish::none) continue;
    all.push_back(std::move(s.news));
    s.news = {.sequence = s.index};
  }
  done_ = ended;
  return all;
}

std::vector<News> Generator::advance(std::int32_t max_steps, double max_ms, const Cancel& cancel) {
  require(max_steps >= 1, "max_steps must be at least 1, not ", max_steps);
  require(max_ms >= 0, "max_ms must be at least 0, not ", max_ms);
  const std::lock_guard lock(mutex_);
  struct Running {
    Generator& generator;
    ~Running() { generator.pause(); }
  };
  const auto start = Clock::now();
  {
    const Running running{*this};
    resume();
    std::int32_t sampled = 0;
    while (sampled < max_steps &&
           std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.state != State::ended; })) {
      cancel.check();
      const std::uint64_t seen = runtime_->pages->changes();
      const Outcome outcome = step(cancel);
      if (outcome == Outcome::sampled) ++sampled;
      const double passed = seconds_since(start) * 1000;
      if (outcome == Outcome::starved) {
        // Others hold the pages. Nothing of this generator runs, so they wait for nothing here.
        for (const Sequence& s : sequences_)
          if (s.state == State::waits) runtime_->pages->check_fits(static_cast<std::int64_t>(s.ids.size()));
        runtime_->pages->wait(seen, std::clamp(max_ms - passed, 1.0, 20.0));
        if (passed >= max_ms) break;
      } else if (passed >= max_ms && sampled > 0) {
        break;
      }
    }
  }
  return collect_news();
}

}  // namespace pumice::engine
