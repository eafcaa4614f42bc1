#include "engine/request_state.h"

#include <algorithm>
#include <map>
#include <random>

#include "core/error.h"
#include "engine/reasoning_budget.h"
#include "engine/runtime.h"
#include "engine/settings.h"
#include "engine/word_filters.h"
#include "model/programs.h"

namespace pumice::engine {

std::exception_ptr own_copy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    return std::make_exception_ptr(found);
  } catch (...) {
    return error;
  }
}

bool RequestState::ended() const {
  return std::ranges::all_of(sequences, [](const Sequence& s) { return s.ended(); });
}

bool RequestState::shows() const {
  return std::ranges::any_of(sequences, [](const Sequence& s) { return !s.ended() && s.shown(); });
}

bool RequestState::held() const {
  return std::ranges::any_of(sequences, [](const Sequence& s) { return s.life == Sequence::Life::held; });
}

bool RequestState::due() const {
  // A sequence may lag (Sequence::lags) after fewer than wanted_steps steps, because a step with guesses may add several tokens. A sequence
  // that lags takes part in no step until its news is read. So its reader would wait for ever if it waited for the remaining steps.
  if (std::ranges::any_of(sequences, &Sequence::lags)) return true;
  if (unread_steps < wanted_steps) return false;
  if (chunk_seconds() <= 0 || collected == Clock::time_point::min()) return true;
  if (std::chrono::duration<float>(Clock::now() - collected).count() >= chunk_seconds()) return true;
  // Does not wait for chunk_seconds if read_ahead is half used up, because a sequence with read_ahead unread tokens would be parked.
  return read_ahead() > 0 && std::ranges::any_of(sequences, [this](const Sequence& s) {
           return 2 * s.news.ids.size() >= static_cast<std::size_t>(read_ahead());
         });
}

bool RequestState::told_all() const {
  if (closed()) return true;
  return ended() && !error && std::ranges::all_of(sequences, [](const Sequence& s) { return s.news.empty(); });
}

void RequestState::want(std::int32_t steps) {
  require(steps >= 1, "steps must be at least 1, not ", steps);
  wanted_steps = read_ahead() > 0 ? std::min(steps, read_ahead()) : steps;
}

std::vector<News> RequestState::collect() {
  std::vector<News> all;
  all.reserve(sequences.size());  // allocates all memory first, so that no news is lost if there is no memory
  for (Sequence& s : sequences) {
    if (s.news.empty()) continue;
    all.push_back(std::move(s.news));
    s.news = {.sequence = s.index};
  }
  unread_steps = 0;
  if (!all.empty()) collected = Clock::now();
  return all;
}

Sequence& RequestState::at(std::int32_t sequence) {
  const auto count = static_cast<std::int32_t>(sequences.size());
  require(sequence >= 0 && sequence < count, "there is no sequence ", sequence, ": ", count, " were asked for");
  return sequences[static_cast<std::size_t>(sequence)];
}

// ---------------------------------------------------------------- a new request
namespace {

constexpr std::int64_t kMostSequences = 65536;

using Ids = std::vector<std::int32_t>;

void check_prompt(const Runtime& r, const Ids& prompt, std::size_t index) {
  require(!prompt.empty(), "prompt ", index, " has no tokens");
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (size + 1 > r.n_ctx)
    fail(ErrorKind::context_length, "prompt ", index, " has ", size, " tokens, the context holds ", r.n_ctx,
         " and needs room for one more: shorten the prompt, or load with a larger n_ctx=");
  r.check_ids(prompt, "prompt", static_cast<std::int64_t>(index));
  r.pages->check_fits(size + 1);
}

std::uint64_t system_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// Gives each sequence of a call its seed. Sequences with the same seed and the same prompt are answers 0, 1, 2, ... to it
// (seed_of_answer()), so that a prompt that is given twice gets two different answers. Any other pair of seed and prompt starts with answer
// 0 again, so that a prompt gets the same tokens as in a call without the other prompts.
class Seeds {
 public:
  std::uint64_t next(std::uint64_t seed, std::span<const std::int32_t> prompt) { return seed_of_answer(seed, used_[{seed, prompt}]++); }

 private:
  using Key = std::pair<std::uint64_t, std::span<const std::int32_t>>;
  struct Less {
    bool operator()(const Key& a, const Key& b) const {
      return a.first != b.first ? a.first < b.first : std::ranges::lexicographical_compare(a.second, b.second);
    }
  };
  std::map<Key, std::uint64_t, Less> used_;
};

void add_filters(Sequence& s, const std::shared_ptr<const BadWords>& bad_words) {
  for (const auto& filter : s.params->filters) s.filters.push_back(filter->clone());
  if (s.params->max_reasoning_tokens >= 0)
    s.filters.push_back(reasoning_budget(s.params->reasoning, s.params->max_reasoning_tokens, s.params->reasoning_opened));
  if (s.params->min_new_tokens > 0) {
    Ids ends = s.params->eos_ids;
    ends.insert(ends.end(), s.params->stop_ids.begin(), s.params->stop_ids.end());
    if (!ends.empty()) s.filters.push_back(not_before(ends, s.params->min_new_tokens));
  }
  if (bad_words) s.filters.push_back(without(bad_words, s.ids));
}

void add_guesses(Sequence& s, const Runtime& runtime) {
  const Speculation& how = s.params->speculation;
  if (s.params->shows_logits) return;  // guesses would be useless, because a caller gets a row only when all ids before it are final
  const bool own = how.asks_draft_head() && runtime.pipeline.drafts();
  if (!how.on() && !own && !(how.foreseen && std::ranges::any_of(s.filters, [](const auto& f) { return f->foresees(); }))) return;
  s.guesses = std::make_unique<Guesses>();
  if (own) s.guesses->own = std::make_unique<OwnDraft>();
  if (how.drafter) s.guesses->drafted.reset(new Drafted{.drafter = how.drafter, .table = {}, .ids = {}, .sampling = {}});
}

void add_sequence(RequestState& request, const Runtime& r, const GenerateParams& params, const Ids& prompt, const Draw& draw,
                  const std::shared_ptr<const BadWords>& bad_words) {
  const std::int32_t vocab = r.pipeline.vocab_size();
  Sequence& s = request.sequences.emplace_back();
  s.request = &request;
  s.params = &params;
  s.prompt = &request.prompts.back();
  s.prompt->add(s);
  s.index = s.news.sequence = static_cast<std::int32_t>(request.sequences.size()) - 1;
  s.draw = draw;
  s.ids = prompt;
  s.length = s.prompt->tokens;
  s.context = std::min<std::int64_t>(r.n_ctx, r.pages->max_tokens());
  s.from_top = r.pipeline.ranks() > 0 && !params.shows_logits && params.sampling.needs_only_top(std::min(r.pipeline.ranks(), vocab - 1));
  s.changed = ChangedIds(static_cast<std::size_t>(model::top_reported(vocab)));
  if (s.from_top)
    for (const auto& [id, bias] : params.sampling.logit_bias) s.changed.add(id);
  if (params.sampling.penalises())
    for (const std::int32_t id : prompt) s.see(id, false);
  add_filters(s, bad_words);
  add_guesses(s, r);
}

}  // namespace

std::shared_ptr<RequestState> make_request(const Runtime& r, const std::vector<Ids>& prompts, std::span<const GenerateParams> params) {
  require(r.pages && r.pipeline.vocab_size() > 0, "this model cannot generate: it has no key-value cache or no output head");
  require(params.size() == 1 || (params.size() == prompts.size() && !params.empty()), params.size(), " sets of parameters for ",
          prompts.size(), " prompts");
  const auto request = std::make_shared<RequestState>();
  request->params.assign(params.begin(), params.end());
  const std::int32_t vocab = r.pipeline.vocab_size();
  for (const GenerateParams& each : request->params) {
    check(each, vocab);
    require(each.max_reasoning_tokens < 0 || each.reasoning, "max_reasoning_tokens needs the marks of reasoning");
    if (each.speculation.own == OwnGuesses::asked && !r.pipeline.drafts())
      fail(ErrorKind::unsupported_task, "speculate=\"mtp\" needs a model with a layer that predicts draft tokens. ", r.why_no_draft,
           ". Use speculate=\"lookup\" or draft=");
    require(each.n == request->n() && each.read_ahead == request->read_ahead() && each.priority == request->priority() &&
                each.max_seconds == request->max_seconds() && each.chunk_seconds == request->chunk_seconds(),
            "n, read_ahead, priority, max_seconds and chunk_seconds are those of all prompts of a call");
  }
  require(static_cast<std::int64_t>(prompts.size()) * request->n() <= kMostSequences, prompts.size(), " prompts x n=", request->n(),
          " are more than ", kMostSequences, " sequences: give them in several calls");
  std::vector<std::shared_ptr<const BadWords>> bad_words;
  for (const GenerateParams& each : request->params)
    bad_words.push_back(each.bad_words.empty() ? nullptr : std::make_shared<const BadWords>(each.bad_words, vocab));
  const std::uint64_t fresh_seed = system_seed();
  Seeds seeds;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    check_prompt(r, prompts[p], p);
    const std::size_t which = request->params.size() == 1 ? 0 : p;
    const GenerateParams& its = request->params[which];
    const std::uint64_t seed = its.sampling.seed.value_or(fresh_seed);
    request->prompts.emplace_back(static_cast<std::int32_t>(prompts[p].size()));
    for (std::int32_t i = 0; i < its.n; ++i)
      add_sequence(*request, r, its, prompts[p], {.seed = seeds.next(seed, prompts[p])}, bad_words[which]);
  }
  return request;
}

}  // namespace pumice::engine
