#include "engine/scorer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "engine/prefill.h"

namespace pumice::engine {
namespace {

void check_finite(std::span<const float> values, std::int64_t first_token, std::size_t per_token, const char* what) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad == values.end()) return;
  fail(ErrorKind::numeric, "the ", what, " after token ", first_token + (bad - values.begin()) / static_cast<std::int64_t>(per_token),
       " is ", *bad, ": the model's numbers overflowed or its weights are damaged; compute=\"float32\" tells which");
}

}  // namespace

void logits(Runtime& runtime, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel) {
  const auto vocab = static_cast<std::size_t>(runtime.pipeline.vocab_size()),
             width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  require(out.size() == vocab * (all ? ids.size() : 1), "logits: the result has room for ", out.size(),
          " values, needed: ", vocab * (all ? ids.size() : 1));
  prefill(
      runtime, ids, all,
      [&](RunSpace& space, std::int64_t first, std::span<const float> hidden) {
        const std::size_t rows = hidden.size() / width, step = static_cast<std::size_t>(runtime.head_rows());
        for (std::size_t row = 0; row < rows; row += step) {
          const std::size_t count = std::min(step, rows - row), at = all ? static_cast<std::size_t>(first) + row : 0;
          const auto to = out.subspan(at * vocab, count * vocab);
          runtime.pipeline.head(space, hidden.subspan(row * width, count * width), to, cancel);
          check_finite(to, first + static_cast<std::int64_t>(row), vocab, "logit");
        }
      },
      cancel);
}

void score(Runtime& runtime, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel) {
  require(out.size() + 1 == ids.size(), "score: the result has room for ", out.size(), " values, needed: one less than the ", ids.size(),
          " tokens");
  const auto width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  prefill(
      runtime, ids, true,
      [&](RunSpace& space, std::int64_t first, std::span<const float> hidden) {
        const std::size_t step = static_cast<std::size_t>(runtime.head_rows());
        const std::size_t rows = std::min(hidden.size() / width, out.size() - static_cast<std::size_t>(first));  // nothing follows the last
        for (std::size_t row = 0; row < rows; row += step) {
          const std::size_t count = std::min(step, rows - row), at = static_cast<std::size_t>(first) + row;
          runtime.pipeline.log_probs(space, hidden.subspan(row * width, count * width), ids.subspan(at + 1, count), out.subspan(at, count),
                                     cancel);
          check_finite(out.subspan(at, count), static_cast<std::int64_t>(at), 1, "log-probability");
        }
      },
      cancel);
}

}  // namespace pumice::engine
