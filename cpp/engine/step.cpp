#include "engine/step.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <new>

#include "engine/sequence.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

// Minimum number of rows of a prompt or text in a step. Fewer rows would not be faster, because the smallest tile of any kernel has 4 rows.
constexpr std::int64_t kTextRows = 4;
// Minimum number of sequences for which tokens are chosen on all workers of the device. With fewer sequences, this thread alone is faster,
// because it need not wait until the device is free.
constexpr std::size_t kParallelSampling = 5;

}  // namespace

void Step::assemble(const Plan& plan) {
  parts_.clear();
  for (const bool decodes : {true, false}) {
    std::int64_t rows_left = decodes ? plan.decode_rows : plan.prompt_rows;
    for (Sequence* sequence : plan.live) {
      Sequence& s = *sequence;
      if (rows_left <= 0 || !(decodes ? s.decodes() : s.reads_prompt())) continue;
      const double price = s.task && s.task->wants_each_row() ? plan.text_price : 1;
      const auto most = std::max(static_cast<std::int64_t>(static_cast<double>(rows_left) / price), std::min(kTextRows, rows_left));
      const auto rows = static_cast<std::int32_t>(std::min(s.pending(), most));
      rows_left -= static_cast<std::int64_t>(rows * price) + (decodes ? s.guess_room : 0);
      parts_.push_back({.sequence = &s, .rows = rows, .samples = !s.task && rows == s.pending()});
    }
  }
  // sample() expects the parts of sequences with a TextTask at the end.
  std::stable_partition(parts_.begin(), parts_.end(), [](const Part& part) { return !part.sequence->task; });
}

// Makes guesses with the model's draft head, together for all sequences that use it.
void Step::guess_with_draft_head(Runtime& runtime, const Cancel& cancel) {
  std::vector<DraftHead::Task> tasks;
  for (Part& part : parts_) {
    const Sequence& s = *part.sequence;
    if (part.samples && s.guess_room > 0 && s.guesses->own && part.guesses.empty())
      tasks.push_back({&s, s.guesses->own.get(), static_cast<std::size_t>(s.guess_room), &part.guesses});
  }
  if (tasks.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  draft_head_.propose(runtime, tasks, cancel);
  for (const DraftHead::Task& task : tasks) own_guesses_ += static_cast<std::int64_t>(task.guesses->size());
  own_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  guess_seconds_ += own_seconds_;
}

// Makes guesses for all parts whose sequences may have guesses (Sequence::guess_room). Lookups come first, then the
// draft models, each of which guesses for all its sequences together, and then the model's draft head.
void Step::guess(Runtime& runtime, const Cancel& cancel) {
  guess_seconds_ = own_seconds_ = 0;
  own_guesses_ = 0;
  std::vector<Drafter::Task> tasks;
  for (Part& part : parts_) {
    Sequence& s = *part.sequence;
    part.guesses.clear();
    part.error.reset();
    part.masks = -1;
    if (!part.samples || s.guess_room <= 0) continue;
    const auto room = static_cast<std::size_t>(s.guess_room);
    if (s.params->speculation.matching > 0) look_up(s.ids, s.params->speculation.matching, room, part.guesses);
    if (part.guesses.empty() && s.guesses->drafted) tasks.push_back({&s, s.guesses->drafted.get(), room, &part.guesses});
  }
  while (!tasks.empty()) {
    Drafter& drafter = *tasks.front().sequence->params->speculation.drafter;
    const auto others = std::stable_partition(
        tasks.begin(), tasks.end(), [&](const Drafter::Task& t) { return t.sequence->params->speculation.drafter.get() == &drafter; });
    const auto start = std::chrono::steady_clock::now();
    drafter.propose(std::span(tasks.begin(), others), cancel);
    guess_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    tasks.erase(tasks.begin(), others);
  }
  guess_with_draft_head(runtime, cancel);
  for (Part& part : parts_) {
    const Sequence& s = *part.sequence;
    const Speculation& how = s.params->speculation;
    const auto index = static_cast<std::size_t>(s.index);
    if (!part.samples || s.guess_room <= 0) continue;
    const bool drafted = how.drafter || s.guesses->own;  // if true, `replay` only replaces guesses that were made, and adds no guesses
    if (index < how.replay.size() && (!drafted || !part.guesses.empty())) {
      const auto& all = how.replay[index];
      const std::size_t first = std::min(all.size(), static_cast<std::size_t>(s.generated()));
      const std::size_t count = std::min(all.size() - first, drafted ? part.guesses.size() : static_cast<std::size_t>(s.guess_room));
      part.guesses.assign(all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(first + count));
    }
    const auto strange = [&](std::int32_t id) { return id < 0 || id >= runtime.vocab; };
    const auto known = std::find_if(part.guesses.begin(), part.guesses.end(), strange);
    part.guesses.erase(known, part.guesses.end());  // guesses end before the first id that this model lacks
  }
}

namespace {

// Returns how many tokens may be guessed because a filter allows only one text (TokenFilter::foreseen). Returns 0 if no filter can
// foresee its text.
std::size_t foreseeable(const Sequence& s) {
  const bool asks = s.guess_room > 0 && s.params->speculation.foreseen;
  return asks && std::ranges::any_of(s.filters, [](const auto& f) { return f->foresees(); }) ? static_cast<std::size_t>(s.guess_room) : 0;
}

std::int32_t foreseen(const Sequence& s, std::span<const std::uint32_t> mask) {
  for (const auto& filter : s.filters)
    if (const std::int32_t id = filter->foreseen(mask); id >= 0) return id;
  return -1;
}

}  // namespace

// Computes the filters' masks for all rows after which a token is chosen. This happens before the rows are computed, so that guesses that
// are not allowed are dropped, and the device ranks (Top) only allowed ids.
void Step::ask_filters(Runtime& runtime, const Cancel& cancel) {
  mask_words_ = mask_words(runtime.pipeline.vocab_size());
  filtered_.clear();
  std::size_t words = 0;
  for (Part& part : parts_) {
    const auto& filters = part.sequence->filters;
    if (!part.samples || filters.empty()) continue;
    if (part.guesses.empty() && std::all_of(filters.begin(), filters.end(), [](const auto& filter) { return filter->open(); })) continue;
    part.masks = static_cast<std::int64_t>(words);
    words += (1 + std::max(part.guesses.size(), foreseeable(*part.sequence))) * mask_words_;
    filtered_.push_back(&part);
  }
  if (filtered_.empty()) return;
  if (allowed_.size() < words) allowed_.resize(words);
  const auto workers = static_cast<std::size_t>(std::max(1, runtime.pipeline.widest().workers()));
  if (mask_scratch_.size() < workers * mask_words_) mask_scratch_.resize(workers * mask_words_);
  const auto ask = [&](std::int64_t i, int worker) {
    ask_filters(*filtered_[static_cast<std::size_t>(i)],
                std::span(mask_scratch_).subspan(static_cast<std::size_t>(worker) * mask_words_, mask_words_));
  };
  const auto parts = static_cast<std::int64_t>(filtered_.size());
  if (filtered_.size() < kParallelSampling) {
    for (std::int64_t i = 0; i < parts; ++i) ask(i, 0);
  } else {
    runtime.pipeline.widest().parallel(parts, ask, cancel);
  }
}

namespace {

// Sets `mask` to the intersection of the masks of all filters.
void ask_all(std::span<const std::unique_ptr<TokenFilter>> filters, std::span<std::uint32_t> mask, std::span<std::uint32_t> scratch) {
  bool first = true;
  for (const auto& filter : filters) {
    if (filter->open()) continue;
    filter->mask(first ? mask : scratch);
    if (!first) std::transform(mask.begin(), mask.end(), scratch.begin(), mask.begin(), std::bit_and<>());
    first = false;
  }
  if (first) std::fill(mask.begin(), mask.end(), ~0u);
}

}  // namespace

void Step::ask_filters(Part& part, std::span<std::uint32_t> scratch) {
  const Sequence& s = *part.sequence;
  const auto mask = [&](std::size_t at) {
    return std::span(allowed_).subspan(static_cast<std::size_t>(part.masks) + at * mask_words_, mask_words_);
  };
  try {
    ask_all(s.filters, mask(0), scratch);
  } catch (const Error& error) {
    part.guesses.clear();
    part.error.emplace(error.kind(), str("sequence ", s.index, ", position ", s.ids.size(), ": ", error.what()));
    return;
  }
  std::vector<std::unique_ptr<TokenFilter>> ahead;  // clones of the filters; they have also accepted the guesses so far
  std::size_t at = 0;
  const std::size_t most = foreseeable(s);
  try {
    for (;; ++at) {
      if (at == part.guesses.size()) {
        const std::int32_t next = at < most ? foreseen(s, mask(at)) : -1;
        if (next < 0) break;
        part.guesses.push_back(next);
      }
      const auto id = static_cast<std::size_t>(part.guesses[at]);
      if ((mask(at)[id / 32] >> (id % 32) & 1u) == 0) break;
      if (ahead.empty()) std::transform(s.filters.begin(), s.filters.end(), std::back_inserter(ahead), [](auto& f) { return f->clone(); });
      if (!std::all_of(ahead.begin(), ahead.end(), [&](auto& filter) { return filter->accept(part.guesses[at]); })) break;
      ask_all(ahead, mask(at + 1), scratch);
    }
  } catch (const Error&) {  // the guesses end here; if the tokens before this point are chosen, a later step reports the error
  }
  part.guesses.resize(at);
}

std::span<const std::uint32_t> Step::allowed(const Part& part, std::size_t at) const {
  if (part.masks < 0) return {};
  return std::span(allowed_).subspan(static_cast<std::size_t>(part.masks) + at * mask_words_, mask_words_);
}

void Step::lay_out() {
  ids_.clear();
  saves_.clear();
  saves_of_.clear();
  segments_.clear();
  selected_.clear();
  sampling_.clear();
  std::size_t choices = 0;
  for (Part& part : parts_) {
    const Sequence& s = *part.sequence;
    const auto first = static_cast<std::int32_t>(ids_.size()), guesses = static_cast<std::int32_t>(part.guesses.size());
    part.first_choice = choices;
    part.chosen = 0;
    segments_.push_back({.first = first,
                         .rows = part.rows + guesses,
                         .past = static_cast<std::int32_t>(s.computed),
                         .pages = s.table.pages(),
                         .length = s.length,
                         .state = s.table.state()});
    const std::size_t saved = saves_.size();
    for (const auto& [tokens, state] : s.table.snapshots()) saves_.push_back({static_cast<std::int32_t>(tokens - s.computed), state});
    const std::span<const std::int32_t> fresh = s.table.fresh();
    for (std::size_t i = 0; i < std::min(fresh.size(), static_cast<std::size_t>(guesses) + 1); ++i)
      saves_.push_back({part.rows + static_cast<std::int32_t>(i), fresh[i]});
    saves_of_.push_back(saves_.size() - saved);
    ids_.insert(ids_.end(), s.ids.begin() + s.computed, s.ids.begin() + s.computed + part.rows);
    ids_.insert(ids_.end(), part.guesses.begin(), part.guesses.end());
    if (s.task) {
      part.wanted = s.task->wanted(s.computed, part.rows, static_cast<std::int64_t>(s.ids.size()));
      part.first_wanted = selected_.size();
      for (std::int32_t row = 0; row < part.wanted.count; ++row) selected_.push_back(first + part.wanted.first + row);
    }
    if (!part.samples) continue;
    part.first_sampled = selected_.size();
    for (std::int32_t row = 0; row <= guesses; ++row) {
      selected_.push_back(first + part.rows - 1 + row);
      sampling_.push_back({&part, static_cast<std::size_t>(row)});
    }
    choices += static_cast<std::size_t>(guesses) + s.prompt->sharing(s);
  }
  choices_.resize(std::max(choices, choices_.size()));
  for (std::size_t i = 0, at = 0; i < segments_.size(); at += saves_of_[i++])
    segments_[i].saves = std::span(saves_).subspan(at, saves_of_[i]);
}

bool Step::run(Runtime& runtime, const Cancel& cancel) {
  guess(runtime, cancel);
  ask_filters(runtime, cancel);
  for (Part& part : parts_) {
    if (part.guesses.empty()) continue;
    part.changed = part.sequence->changed;
    if (part.sequence->from_top && part.sequence->params->sampling.penalises())
      for (const std::int32_t id : part.guesses) part.changed.add(id);
  }
  lay_out();
  const auto spaces = runtime.spaces.take(Crew::team, cancel);
  if (selected_.empty()) selected_.push_back(rows() - 1);  // the body must return at least one row
  width_ = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  const std::size_t values = selected_.size() * width_;
  if (hidden_.size() < values) hidden_.resize(values);
  const Batch batch{.rows = rows(), .ids = ids_, .segments = segments_, .selected = selected_};
  if (!runtime.body(spaces[0], batch, std::span(hidden_).first(values), cancel)) return false;
  if (!sampling_.empty()) sample(runtime, spaces[0], cancel);
  read_texts(runtime, spaces[0], cancel);
  const auto failed = std::ranges::find_if(parts_, [](const Part& part) { return part.error && part.error->kind() == ErrorKind::numeric; });
  if (failed != parts_.end()) {  // finds the layer for only the first failed text, because other requests wait meanwhile
    failed->error.emplace(ErrorKind::numeric, failed->error->what() + runtime.where_not_finite(failed->sequence->ids, {}, cancel));
  }
  return true;
}

// Computes the results of all sequences with a TextTask, and copies the results to the callers' memory.
void Step::read_texts(Runtime& runtime, RunSpace& space, const Cancel& cancel) {
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  for (Part& part : parts_) {
    if (part.wanted.count == 0) continue;
    const Sequence& s = *part.sequence;
    const auto hidden = std::span(hidden_).subspan(part.first_wanted * width, static_cast<std::size_t>(part.wanted.count) * width);
    try {
      s.task->take(runtime, space, s.ids, s.computed + part.wanted.first, hidden, logits_, cancel);
    } catch (const Error& error) {
      // The tokens of other requests are chosen already, so the error must end only this text.
      if (error.kind() == ErrorKind::cancelled || error.kind() == ErrorKind::device_lost) throw;
      part.error.emplace(error);
    } catch (const std::bad_alloc&) {
      part.error.emplace(ErrorKind::out_of_memory, "the logits of a text cannot be allocated: give shorter texts, or fewer at once");
    }
  }
}

namespace {

// Returns the ids whose logits are changed by penalties or a bias in any row of the part.
const ChangedIds& changed_ids(const Step::Part& part) { return part.guesses.empty() ? part.sequence->changed : part.changed; }

}  // namespace

// Computes the logits and chooses the tokens of all parts whose last id was computed. Handles a block of rows at a time. The rows for which
// the device's ranking (Top) suffices come first, then the rows that need all logits.
void Step::sample(Runtime& runtime, RunSpace& space, const Cancel& cancel) {
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size()), block = static_cast<std::size_t>(runtime.head_rows());
  samplers_.resize(static_cast<std::size_t>(std::max(1, runtime.pipeline.widest().workers())));
  const auto ranked = [](const Row& row) { return row.part->sequence->from_top && changed_ids(*row.part).fit(); };
  std::span<const float> hidden = hidden_;
  const auto tops = static_cast<std::size_t>(std::count_if(sampling_.begin(), sampling_.end(), ranked));
  if (!std::is_partitioned(sampling_.begin(), sampling_.end(), ranked)) {
    sorted_.resize(sampling_.size() * width);
    std::size_t top = 0, whole = tops;
    for (std::size_t i = 0; i < sampling_.size(); ++i) {
      const auto row = hidden.subspan(i * width, width);
      std::copy(row.begin(), row.end(), sorted_.begin() + static_cast<std::ptrdiff_t>((ranked(sampling_[i]) ? top : whole)++ * width));
    }
    std::stable_partition(sampling_.begin(), sampling_.end(), ranked);
    hidden = sorted_;
  }
  for (std::size_t row = 0; row < sampling_.size();) {
    const std::size_t end = row < tops ? tops : sampling_.size(), rows = std::min(block, end - row);
    choose(runtime, space, std::span(sampling_).subspan(row, rows), hidden.subspan(row * width, rows * width), row < tops, cancel);
    row += rows;
  }
}

// Runs Top on the device. For each row, `out` gets the largest logits, and the logits of the ids that penalties or a bias change.
void Step::run_top(Runtime& runtime, RunSpace& space, std::span<const Row> rows, std::span<const float> hidden, std::span<float> out,
                   const Cancel& cancel) {
  reported_.clear();
  reported_first_.assign(1, 0);
  allowed_first_.clear();
  ranked_.clear();
  for (const Row& row : rows) {
    ranked_.push_back(row.part->sequence->params->sampling.ranks());
    const auto mask = allowed(*row.part, row.at);
    allowed_first_.push_back(mask.empty() ? -1 : static_cast<std::int32_t>(mask.data() - allowed_.data()));
    const auto ids = changed_ids(*row.part).ids();
    reported_.insert(reported_.end(), ids.begin(), ids.end());
    reported_first_.push_back(static_cast<std::int32_t>(reported_.size()));
  }
  const Batch lists{
      .reported = reported_, .reported_first = reported_first_, .ranked = ranked_, .allowed = allowed_, .allowed_first = allowed_first_};
  runtime.pipeline.top(space, hidden, lists, out, cancel);
}

// Chooses the token after the part's next row. If several sequences share that row, because they continue the same prompt, chooses a token
// for each sequence.
void Step::choose(Part& part, Sampler& sampler, std::span<float> row, bool top, std::int32_t vocab) {
  const std::size_t at = part.chosen;
  std::size_t choice = part.first_choice + at;
  TokenCounts ahead;  // counts of the sequence's ids and of the guesses before this row
  const bool counts = at > 0 && part.sequence->params->sampling.penalises();
  if (counts) {
    ahead = part.sequence->seen;
    for (std::size_t i = 0; i < at; ++i) ahead.add(part.guesses[i], true);
  }
  std::vector<std::int32_t> text_ahead;
  if (at > 0 && part.sequence->params->sampling.dry_multiplier > 0) {
    text_ahead = part.sequence->ids;
    text_ahead.insert(text_ahead.end(), part.guesses.begin(), part.guesses.begin() + static_cast<std::ptrdiff_t>(at));
  }
  part.sequence->prompt->each_sharing(*part.sequence, [&](Sequence& s) {
    Choice& chosen = choices_[choice++];
    if (part.error) return;
    const TokenCounts& seen = counts ? ahead : s.seen;
    const Draw draw{s.draw.seed, s.draw.stream, static_cast<std::uint64_t>(s.generated()) + at};
    const Around around{.allowed = allowed(part, at),
                        .ids = text_ahead.empty() ? s.ids : text_ahead,
                        .mu = at > 0 ? std::optional(choices_[part.first_choice + at - 1].mu) : s.mu};
    try {
      if (s.params->shows_logits) {
        Sampler::check(row);
        chosen.row.assign(row.begin(), row.end());
      } else if (top) {
        // The sequences that share this row have the same prompt and penalties, so changed_ids(part) are the changed ids of each of them.
        sampler.choose(s.params->sampling, TopRow{row, model::kTopLogits}, changed_ids(part).ids(), vocab, seen, draw, chosen, around);
      } else {
        sampler.choose(s.params->sampling, row, seen, draw, chosen, around);
      }
    } catch (const Error& error) {
      part.error.emplace(error.kind(), str("sequence ", s.index, ", position ", s.ids.size() + at, ": ", error.what()));
    }
  });
  if (!part.error) {
    ++part.chosen;
  } else if (at > 0) {  // tokens were chosen after the rows before this row; the next step computes this row again and reports the error
    part.error.reset();
    part.stopped = true;
  }
}

void Step::choose(Runtime& runtime, RunSpace& space, std::span<const Row> rows, std::span<const float> hidden, bool top,
                  const Cancel& cancel) {
  const Pipeline& pipeline = runtime.pipeline;
  const auto columns = static_cast<std::size_t>(top ? pipeline.top_columns() : pipeline.vocab_size());
  if (logits_.size() < rows.size() * columns) logits_.resize(rows.size() * columns);
  const std::span<float> logits = std::span(logits_).first(rows.size() * columns);
  if (top) {
    run_top(runtime, space, rows, hidden, logits, cancel);
  } else {
    pipeline.head(space, hidden, logits, cancel);
  }
  groups_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (i == 0 || rows[i].part != rows[i - 1].part) groups_.push_back(i);
  groups_.push_back(rows.size());
  const auto choose_rows = [&](std::int64_t group, int worker) {
    std::unique_ptr<Sampler>& sampler = samplers_[static_cast<std::size_t>(worker)];
    if (!sampler) sampler = std::make_unique<Sampler>();
    for (std::size_t i = groups_[static_cast<std::size_t>(group)]; i < groups_[static_cast<std::size_t>(group) + 1]; ++i) {
      Part& part = *rows[i].part;
      const std::size_t at = rows[i].at;
      if (at != part.chosen || part.error || part.stopped) return;
      if (at > 0 && choices_[part.first_choice + at - 1].id != part.guesses[at - 1]) return;
      choose(part, *sampler, logits.subspan(i * columns, columns), top, pipeline.vocab_size());
    }
  };
  const std::size_t groups = groups_.size() - 1;
  if (groups < kParallelSampling) {
    for (std::size_t i = 0; i < groups; ++i) choose_rows(static_cast<std::int64_t>(i), 0);
  } else {
    runtime.pipeline.widest().parallel(static_cast<std::int64_t>(groups), choose_rows, cancel);
  }
}

}  // namespace pumice::engine
