#include "engine/text_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/finite.h"

namespace pumice::engine {
namespace {

void check_finite(std::span<const float> values, std::int64_t first_token, std::size_t per_token, const char* what) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad == values.end()) return;
  fail(ErrorKind::numeric, "the ", what, " after token ", first_token + (bad - values.begin()) / static_cast<std::int64_t>(per_token),
       " is ", name_not_finite(*bad), kWhyNotFinite);
}

}  // namespace

TextTask::Rows TextTask::wanted(std::int64_t past, std::int32_t rows, std::int64_t tokens) const {
  const bool ends = past + rows == tokens;
  switch (wants_) {
    case Wants::pages:
    case Wants::room:
      return {};
    case Wants::last_logits:
      return ends ? Rows{.first = rows - 1, .count = 1} : Rows{};
    case Wants::all_logits:
      return {.first = 0, .count = rows};
    case Wants::scores:
      return {.first = 0, .count = ends ? rows - 1 : rows};  // the last token's row yields no score, because no token follows
  }
  return {};
}

void TextTask::take(Runtime& runtime, RunSpace& space, std::span<const std::int32_t> ids, std::int64_t first, std::span<const float> hidden,
                    std::vector<float>& scratch, const Cancel& cancel) {
  const Pipeline& pipeline = runtime.pipeline;
  const bool ranks = likeliest_.count > 0, scores = wants_ == Wants::scores && !ranks;
  const std::size_t width = static_cast<std::size_t>(pipeline.hidden_size()), rows = hidden.size() / width,
                    block = static_cast<std::size_t>(runtime.head_rows()),
                    values = scores ? 1 : static_cast<std::size_t>(pipeline.vocab_size());
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t row = 0; row < rows; row += block) {
    if (closed()) return;
    const std::size_t count = std::min(block, rows - row), at = static_cast<std::size_t>(first) + row;
    if (scratch.size() < count * values) scratch.resize(count * values);
    const std::span<float> found = std::span(scratch).first(count * values);
    const std::span<const float> from = hidden.subspan(row * width, count * width);
    if (scores) {
      pipeline.log_probs(space, from, ids.subspan(at + 1, count), found, cancel);
    } else {
      pipeline.head(space, from, found, cancel);
    }
    check_finite(found, static_cast<std::int64_t>(at), values, scores ? "log-probability" : "logit");
    if (ranks) {
      rank(pipeline, found, ids.subspan(at + 1, count), cancel);
      give_choices(at, count);
      continue;
    }
    give(wants_ == Wants::last_logits ? 0 : at * values, found);
  }
  runtime.pace.measured_heads(static_cast<std::int32_t>(rows),
                              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

// Computes the log-probability of each row's target, and the row's likeliest tokens. The rows are divided among the workers of a device.
void TextTask::rank(const Pipeline& pipeline, std::span<const float> logits, std::span<const std::int32_t> targets, const Cancel& cancel) {
  const std::size_t width = logits.size() / targets.size();
  samplers_.resize(static_cast<std::size_t>(std::max(1, pipeline.widest().workers())));
  if (choices_.size() < targets.size()) choices_.resize(targets.size());
  pipeline.widest().parallel(
      static_cast<std::int64_t>(targets.size()),
      [&](std::int64_t job, int worker) {
        std::unique_ptr<Sampler>& sampler = samplers_[static_cast<std::size_t>(worker)];
        if (!sampler) sampler = std::make_unique<Sampler>();
        const auto row = static_cast<std::size_t>(job);
        sampler->score(logits.subspan(row * width, width), targets[row], likeliest_.count, choices_[row]);
      },
      cancel);
}

void TextTask::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool TextTask::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void TextTask::give(std::size_t at, std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  if (!closed_) std::ranges::copy(values, out_.subspan(at, values.size()).begin());
}

void TextTask::give_choices(std::size_t at, std::size_t count) {
  const auto width = static_cast<std::size_t>(likeliest_.count);
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  for (std::size_t row = 0; row < count; ++row) {
    const Choice& choice = choices_[row];
    out_[at + row] = choice.logprob;
    std::ranges::copy(choice.top_ids, likeliest_.ids.subspan((at + row) * width, width).begin());
    std::ranges::copy(choice.top_logprobs, likeliest_.log_probs.subspan((at + row) * width, width).begin());
  }
}

}  // namespace pumice::engine
