#include "engine/request.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "core/error.h"
#include "engine/scheduler.h"
#include "engine/word_filters.h"
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

void Request::check(const Runtime& r, const GenerateParams& params) const {
  const std::int32_t vocab = r.pipeline.vocab_size();
  params.sampling.validate(vocab);
  require(params.max_new_tokens >= 1, "max_new_tokens must be at least 1, not ", params.max_new_tokens);
  require(params.min_new_tokens >= 0 && params.min_new_tokens <= params.max_new_tokens, "min_new_tokens must be between 0 and ",
          params.max_new_tokens, " (max_new_tokens), not ", params.min_new_tokens);
  require(params.n >= 1 && params.n <= kMostSequences, "n must be between 1 and ", kMostSequences, ", not ", params.n);
  require(params.read_ahead >= 0, "read_ahead must be at least 0 (0: no limit), not ", params.read_ahead);
  require(params.n == n() && params.read_ahead == read_ahead() && params.priority == priority(),
          "n, read_ahead and priority are those of all prompts of a call");
  const Speculation& guesses = params.speculation;
  require(guesses.matching >= 0 && guesses.most >= 1 && guesses.most <= kMostGuesses, "speculation: matching must be at least 0, not ",
          guesses.matching, ", and the most guesses of a step 1 to ", kMostGuesses, ", not ", guesses.most);
  const auto known = [&](const std::vector<std::int32_t>& ids, const char* what) {
    for (const std::int32_t id : ids) require(id >= 0 && id < vocab, what, " ", id, " is not in the vocabulary of ", vocab);
  };
  known(params.eos_ids, "eos id");
  known(params.stop_ids, "stop id");
  for (const std::vector<std::int32_t>& word : params.bad_words) {
    require(!word.empty(), "bad_words holds a word without tokens");
    known(word, "bad_words: id");
  }
  for (const auto& filter : params.filters) require(filter != nullptr, "a token filter is null");
}

void Request::add_filters(Sequence& s, const std::shared_ptr<const BadWords>& bad_words) const {
  for (const auto& filter : s.params->filters) s.filters.push_back(filter->clone());
  if (s.params->min_new_tokens > 0) {
    std::vector<std::int32_t> ends = s.params->eos_ids;
    ends.insert(ends.end(), s.params->stop_ids.begin(), s.params->stop_ids.end());
    if (!ends.empty()) s.filters.push_back(not_before(ends, s.params->min_new_tokens));
  }
  if (bad_words) s.filters.push_back(without(bad_words, s.ids));
}

Request::Request(Scheduler& scheduler, const Runtime& r, const std::vector<std::vector<std::int32_t>>& prompts,
                 std::span<const GenerateParams> params)
    : scheduler_(scheduler), params_(params.begin(), params.end()) {
  require(r.pages && r.pipeline.vocab_size() > 0, "this model cannot generate: it has no key-value cache or no output head");
  require(params_.size() == 1 || (params_.size() == prompts.size() && !params_.empty()), params_.size(), " sets of parameters for ",
          prompts.size(), " prompts");
  for (const GenerateParams& each : params_) check(r, each);
  require(static_cast<std::int64_t>(prompts.size()) * n() <= kMostSequences, prompts.size(), " prompts x n=", n(), " are more than ",
          kMostSequences, " sequences: give them in several calls");
  const std::int32_t vocab = r.pipeline.vocab_size();
  std::vector<std::shared_ptr<const BadWords>> bad_words(params_.size());
  for (std::size_t i = 0; i < params_.size(); ++i)
    if (!params_[i].bad_words.empty()) bad_words[i] = std::make_shared<const BadWords>(params_[i].bad_words, vocab);
  const std::uint64_t fresh_seed = system_seed();

  // Equal prompts of one call and seed draw from different streams, different ones from the same: so a prompt's tokens are those that it
  // would get alone, and a prompt given twice gets two answers.
  struct Less {
    bool operator()(const std::pair<std::uint64_t, std::span<const std::int32_t>>& a,
                    const std::pair<std::uint64_t, std::span<const std::int32_t>>& b) const {
      return a.first != b.first ? a.first < b.first : std::ranges::lexicographical_compare(a.second, b.second);
    }
  };
  std::map<std::pair<std::uint64_t, std::span<const std::int32_t>>, std::uint64_t, Less> streams;
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
    const std::size_t which = params_.size() == 1 ? 0 : p;
    const GenerateParams& its = params_[which];
    const std::uint64_t seed = its.sampling.seed.value_or(fresh_seed);
    const bool from_top = r.pipeline.top_columns() > 0 && !its.shows_logits &&
                          its.sampling.needs_only_top(std::min(model::kTopLogits, vocab - 1));
    std::uint64_t& stream = streams[{seed, prompt}];
    for (std::int32_t i = 0; i < its.n; ++i) {
      Sequence& s = sequences_.emplace_back();
      s.request = this;
      s.params = &its;
      s.index = s.news.sequence = static_cast<std::int32_t>(sequences_.size()) - 1;
      s.prompt_tokens = s.length = static_cast<std::int32_t>(size);
      s.context = std::min<std::int64_t>(r.n_ctx, r.pages->max_tokens());
      s.draw = {.seed = seed, .stream = stream++};
      s.state = i == 0 ? Sequence::State::waits : Sequence::State::follows;
      s.ids = prompt;
      s.from_top = from_top;
      s.changed = ChangedIds(static_cast<std::size_t>(model::top_reported(vocab)));
      if (from_top)
        for (const auto& [id, bias] : its.sampling.logit_bias) s.changed.add(id);
      add_filters(s, bad_words[which]);
      const bool foresees = its.speculation.foreseen && std::ranges::any_of(s.filters, [](const auto& f) { return f->foresees(); });
      const bool guesses = (its.speculation.on() || foresees) && !its.shows_logits;  // rows are shown when all before them are known
      if (guesses) s.guesses = std::make_unique<Guesses>();
      if (guesses && its.speculation.drafter)
        s.guesses->drafted.reset(new Drafted{.drafter = its.speculation.drafter, .table = {}, .ids = {}, .sampling = {}});
      if (!its.sampling.penalises()) continue;
      for (const std::int32_t id : prompt) s.see(id, false);
    }
  }
  reused_tokens_.assign(prompts.size(), -1);
}

std::vector<std::uint64_t> Request::seeds() const {
  std::vector<std::uint64_t> seeds;
  for (std::size_t i = 0; i < sequences_.size(); i += static_cast<std::size_t>(n())) seeds.push_back(sequences_[i].draw.seed);
  return seeds;
}

bool Request::ended() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.state == Sequence::State::ended; });
}

Sequence* Request::heir(const Sequence& sequence) {
  if (sequence.state == Sequence::State::follows || sequence.generated() > 0) return nullptr;
  for (std::int32_t i = sequence.index + 1; i < sequences() && i / n() == sequence.index / n(); ++i)
    if (Sequence& each = sequences_[static_cast<std::size_t>(i)]; each.state == Sequence::State::follows && !each.dropped) return &each;
  return nullptr;
}

void Request::want(std::int32_t steps) {
  require(steps >= 1, "steps must be at least 1, not ", steps);
  wanted_steps_ = read_ahead() > 0 ? std::min(steps, read_ahead()) : steps;
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

bool Request::shows() const {
  return std::any_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& s) { return s.state != Sequence::State::ended && s.shown(); });
}

std::vector<Request::Shown> Request::shown() const {
  std::vector<Shown> all;
  const std::lock_guard lock(scheduler_.mutex_);
  for (const Sequence& s : sequences_)
    if (s.state != Sequence::State::ended && s.shown()) all.push_back({s.index, s.ids, s.row});
  return all;
}

void Request::answer(std::int32_t sequence, std::span<const float> logits) {
  std::vector<float> row(logits.begin(), logits.end());
  std::vector<std::uint32_t> left;
  for (std::size_t id = 0; id < row.size(); ++id) {
    if (std::isfinite(row[id])) continue;
    require(row[id] < 0, "the logit of token ", id, " was made ", row[id],
            "; a logit is a finite number, or -inf, which forbids the token");
    if (left.empty()) left.resize(mask_words(static_cast<std::int64_t>(row.size())), ~0u);
    left[id / 32] &= ~(1u << (id % 32));
    row[id] = 0;
  }
  const std::lock_guard lock(scheduler_.mutex_);
  require(sequence >= 0 && sequence < sequences(), "there is no sequence ", sequence, ": ", sequences(), " were asked for");
  Sequence& s = sequences_[static_cast<std::size_t>(sequence)];
  if (s.state == Sequence::State::ended || !s.shown()) return;  // closed meanwhile
  require(row.size() == s.row.size(), row.size(), " logits for a vocabulary of ", s.row.size());
  s.answer = std::move(row);
  s.left_by_answer = std::move(left);
  scheduler_.look_again();
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
