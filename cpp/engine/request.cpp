#include "engine/request.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <random>

#include "core/error.h"
#include "engine/scheduler.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

constexpr std::int64_t kMostSequences = 65536;
constexpr std::int32_t kMostGuesses = 63;  // of a step: so many rows still count as decoding

std::uint64_t system_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Request::Request(Scheduler& scheduler, const Runtime& r, const std::vector<std::vector<std::int32_t>>& prompts, GenerateParams params)
    : scheduler_(scheduler), params_(std::move(params)), seed_(params_.sampling.seed ? *params_.sampling.seed : system_seed()) {
  require(r.pages && r.pipeline.vocab_size() > 0, "this model cannot generate: it has no key-value cache or no output head");
  const std::int32_t vocab = r.pipeline.vocab_size();
  params_.sampling.validate(vocab);
  require(params_.max_new_tokens >= 1, "max_new_tokens must be at least 1, not ", params_.max_new_tokens);
  require(params_.n >= 1 && params_.n <= kMostSequences, "n must be between 1 and ", kMostSequences, ", not ", params_.n);
  require(params_.read_ahead >= 0, "read_ahead must be at least 0 (0: no limit), not ", params_.read_ahead);
  require(static_cast<std::int64_t>(prompts.size()) * params_.n <= kMostSequences, prompts.size(), " prompts x n=", params_.n,
          " are more than ", kMostSequences, " sequences: give them in several calls");
  const Speculation& guesses = params_.speculation;
  require(guesses.matching >= 0 && guesses.most >= 1 && guesses.most <= kMostGuesses, "speculation: matching must be at least 0, not ",
          guesses.matching, ", and the most guesses of a step 1 to ", kMostGuesses, ", not ", guesses.most);
  for (const std::int32_t id : params_.eos_ids)
    require(id >= 0 && id < vocab, "eos id ", id, " is not in the vocabulary of ", vocab);
  const bool from_top = r.pipeline.top_columns() > 0 && params_.sampling.needs_only_top(std::min(model::kTopLogits, vocab - 1));

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
      s.request = this;
      s.params = &params_;
      s.index = s.news.sequence = static_cast<std::int32_t>(sequences_.size()) - 1;
      s.prompt_tokens = s.length = static_cast<std::int32_t>(size);
      s.context = std::min<std::int64_t>(r.n_ctx, r.pages->max_tokens());
      s.draw = {.seed = seed_, .stream = stream++};
      s.state = i == 0 ? Sequence::State::waits : Sequence::State::follows;
      s.ids = prompt;
      s.from_top = from_top;
      s.changed = ChangedIds(static_cast<std::size_t>(model::top_reported(vocab)));
      if (from_top)
        for (const auto& [id, bias] : params_.sampling.logit_bias) s.changed.add(id);
      if (params_.speculation.on()) s.guesses = std::make_unique<Guesses>();
      if (params_.speculation.drafter)
        s.guesses->drafted.reset(new Drafted{.drafter = params_.speculation.drafter, .table = {}, .ids = {}, .sampling = {}});
      if (!params_.sampling.penalises()) continue;
      for (const std::int32_t id : prompt) s.see(id, false);
    }
  }
  reused_tokens_.assign(prompts.size(), -1);
}

bool Request::ended() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.state == Sequence::State::ended; });
}

Sequence* Request::heir(const Sequence& sequence) {
  if (sequence.state == Sequence::State::follows || sequence.generated() > 0) return nullptr;
  for (std::int32_t i = sequence.index + 1; i < sequences() && i / params_.n == sequence.index / params_.n; ++i)
    if (Sequence& each = sequences_[static_cast<std::size_t>(i)]; each.state == Sequence::State::follows && !each.dropped) return &each;
  return nullptr;
}

void Request::want(std::int32_t steps) {
  require(steps >= 1, "steps must be at least 1, not ", steps);
  wanted_steps_ = params_.read_ahead > 0 ? std::min(steps, params_.read_ahead) : steps;
}

void Request::start(std::uint64_t tag, std::int32_t steps) {
  const std::lock_guard lock(scheduler_.mutex_);
  want(steps);
  scheduler_.check_room();
  scheduler_.join(*this);
  pumped_ = true;
  tag_ = tag;
  scheduler_.tell(*this);  // one without sequences has ended
}

void Request::hold(bool held) {
  const std::lock_guard lock(scheduler_.mutex_);
  held_ = held;
  scheduler_.tell(*this);
}

bool Request::wait(std::int32_t steps, double max_ms) {
  require(max_ms >= 0, "max_ms must be at least 0, not ", max_ms);
  const std::chrono::duration<double, std::milli> most(std::min(max_ms, 1e9));
  std::unique_lock lock(scheduler_.mutex_);
  want(steps);
  scheduler_.has_read(reader_);
  scheduler_.join(*this);
  if (ready()) return true;
  ++waiting_;
  const bool came = news_->wait_for(lock, most, [&] { return ready(); });
  --waiting_;
  return came;
}

std::vector<News> Request::collect() {
  std::vector<News> all;
  for (Sequence& s : sequences_) {
    if (s.news.empty()) continue;
    all.push_back(std::move(s.news));
    s.news = {.sequence = s.index};
  }
  unread_steps_ = 0;
  if (lagging_) scheduler_.look_again();
  return all;
}

std::vector<News> Request::take() {
  const std::lock_guard lock(scheduler_.mutex_);
  std::vector<News> all = collect();
  if (all.empty() && error_ && ended()) {
    told_ = true;
    std::rethrow_exception(error_);
  }
  return all;
}

void Request::finish(std::int32_t sequence) {
  const std::lock_guard lock(scheduler_.mutex_);
  require(sequence >= 0 && sequence < sequences(), "there is no sequence ", sequence, ": ", sequences(), " were asked for");
  Sequence& s = sequences_[static_cast<std::size_t>(sequence)];
  s.news = {.sequence = sequence};
  scheduler_.drop(s);
}

void Request::close() {
  const std::lock_guard lock(scheduler_.mutex_);
  closed_ = true;
  for (Sequence& s : sequences_) s.news = {.sequence = s.index};
  scheduler_.has_read(reader_);
  scheduler_.drop(*this);
}

bool Request::done() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return told_all();
}

bool Request::told_all() const {
  if (closed_) return true;
  if (!ended() || (error_ && !told_)) return false;
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.news.empty(); });
}

std::vector<std::int32_t> Request::reused_tokens() const {
  const std::lock_guard lock(scheduler_.mutex_);
  std::vector<std::int32_t> reused = reused_tokens_;
  for (std::int32_t& tokens : reused) tokens = std::max(tokens, 0);
  return reused;
}

Timings Request::timings() const {
  const std::lock_guard lock(scheduler_.mutex_);
  return timings_;
}

}  // namespace pumice::engine
