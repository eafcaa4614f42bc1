#include "engine/step.h"

#include <algorithm>

#include "engine/request.h"
#include "model/programs.h"

namespace pumice::engine {
namespace {

constexpr std::size_t kParallelSampling = 5;  // rows from which sampling on all workers beats waiting for a turn of the device

}  // namespace

void Step::assemble(std::span<Sequence* const> sequences, std::int64_t decode_rows, std::int64_t prompt_rows) {
  parts_.clear();
  ids_.clear();
  segments_.clear();
  selected_.clear();
  std::size_t choices = 0;
  for (const bool decodes : {true, false}) {
    std::int64_t& rows_left = decodes ? decode_rows : prompt_rows;
    for (Sequence* sequence : sequences) {
      Sequence& s = *sequence;
      if (!(decodes ? s.decodes() : s.reads_prompt())) continue;
      const auto rows = static_cast<std::int32_t>(std::min(s.pending(), rows_left));
      if (rows <= 0) continue;
      rows_left -= rows;
      const bool samples = rows == s.pending();
      const auto first = static_cast<std::int32_t>(ids_.size());
      parts_.push_back({&s, rows, samples, choices, {}});
      segments_.push_back({.first = first, .rows = rows, .past = static_cast<std::int32_t>(s.computed), .pages = s.table.pages(),
                           .length = s.length});
      ids_.insert(ids_.end(), s.ids.begin() + s.computed, s.ids.begin() + s.computed + rows);
      s.in_step = true;
      if (!samples) continue;
      selected_.push_back(first + rows - 1);
      s.request->each_sharing(s, [&](Sequence& each) {
        each.in_step = true;
        ++choices;
      });
    }
  }
  choices_.resize(std::max(choices, choices_.size()));
}

bool Step::run(Runtime& runtime, const Cancel& cancel) {
  const auto spaces = runtime.spaces.take(Crew::team, cancel);
  const bool samples = !selected_.empty();
  if (!samples) selected_.push_back(rows() - 1);  // a run has at least one row to give
  const std::size_t values = selected_.size() * static_cast<std::size_t>(runtime.pipeline.hidden_size());
  if (hidden_.size() < values) hidden_.resize(values);
  const Batch batch{.rows = rows(), .ids = ids_, .segments = segments_, .selected = selected_};
  if (!runtime.body(spaces[0], batch, std::span(hidden_).first(values), cancel)) return false;
  if (samples) sample(runtime, spaces[0], cancel);
  return true;
}

// Heads and choices of all parts that reached their last id, a block of rows at a time: first those that the device's ranking serves,
// then those that need whole rows.
void Step::sample(Runtime& runtime, RunSpace& space, const Cancel& cancel) {
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size()), block = static_cast<std::size_t>(runtime.head_rows());
  samplers_.resize(static_cast<std::size_t>(std::max(1, runtime.pipeline.widest().workers())));
  sampling_.clear();
  for (Part& part : parts_)
    if (part.samples) sampling_.push_back(&part);
  const auto ranked = [](const Part* part) { return part->sequence->from_top && part->sequence->changed.fit(); };
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

// The largest logits, and those that penalties or bias change.
void Step::run_top(Runtime& runtime, RunSpace& space, std::span<Part* const> parts, std::span<const float> hidden, std::span<float> rows,
                   const Cancel& cancel) {
  reported_.clear();
  reported_first_.assign(1, 0);
  for (const Part* part : parts) {
    const auto ids = part->sequence->changed.ids();
    reported_.insert(reported_.end(), ids.begin(), ids.end());
    reported_first_.push_back(static_cast<std::int32_t>(reported_.size()));
  }
  runtime.pipeline.top(space, hidden, reported_, reported_first_, rows, cancel);
}

void Step::choose(Runtime& runtime, RunSpace& space, std::span<Part* const> parts, std::span<const float> hidden, bool top,
                  const Cancel& cancel) {
  const Pipeline& pipeline = runtime.pipeline;
  const auto columns = static_cast<std::size_t>(top ? pipeline.top_columns() : pipeline.vocab_size());
  if (logits_.size() < parts.size() * columns) logits_.resize(parts.size() * columns);
  const std::span<float> logits = std::span(logits_).first(parts.size() * columns);
  if (top) {
    run_top(runtime, space, parts, hidden, logits, cancel);
  } else {
    pipeline.head(space, hidden, logits, cancel);
  }
  const auto choose_row = [&](std::int64_t i, int worker) {
    std::unique_ptr<Sampler>& sampler = samplers_[static_cast<std::size_t>(worker)];
    if (!sampler) sampler = std::make_unique<Sampler>();
    Part& part = *parts[static_cast<std::size_t>(i)];
    const auto row = logits.subspan(static_cast<std::size_t>(i) * columns, columns);
    std::size_t choice = part.first_choice;
    part.sequence->request->each_sharing(*part.sequence, [&](Sequence& s) {
      Choice& chosen = choices_[choice++];
      if (part.error) return;
      const Draw draw{s.draw.seed, s.draw.stream, static_cast<std::uint64_t>(s.generated())};
      try {
        if (top) {  // followers share a prompt, and so what changes
          sampler->choose(s.params->sampling, TopRow{row, model::kTopLogits}, part.sequence->changed.ids(), pipeline.vocab_size(), s.seen,
                          draw, chosen);
        } else {
          sampler->choose(s.params->sampling, row, s.seen, draw, chosen);
        }
      } catch (const Error& error) {
        part.error.emplace(error.kind(), str("sequence ", s.index, ", position ", s.ids.size(), ": ", error.what()));
      }
    });
  };
  if (parts.size() < kParallelSampling) {
    for (std::size_t i = 0; i < parts.size(); ++i) choose_row(static_cast<std::int64_t>(i), 0);
  } else {
    runtime.pipeline.widest().parallel(static_cast<std::int64_t>(parts.size()), choose_row, cancel);
  }
}

}  // namespace pumice::engine
