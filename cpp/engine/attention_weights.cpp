#include "engine/attention_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/attend_score.h"
#include "core/checked.h"

namespace pumice::engine {
namespace {

// Number of attention scores in a job, and number of jobs per worker in a call of Backend::parallel(). They are chosen for calls that take
// tens of milliseconds. A score takes about 100 ns, so a job takes 3 ms, and a call about 26 ms.
constexpr std::int64_t kScoresOfJob = 32 * 1024, kJobsOfWorker = 8;

struct Text {
  const Attend& attend;
  const AttendScore<float> score;
  const float* sinks;  // null if the layer has no sinks
  const float* rows;
  std::int64_t width, tokens;
  const float* at(const View& view, std::int64_t row) const { return view ? rows + row * width + view.col : nullptr; }
};

void weights_of_query(const Text& text, std::int64_t head, std::int64_t query, std::span<double> scores, float* out) {
  const Attend& a = text.attend;
  const std::int64_t group = a.q.width / a.key_dim / a.kv_heads;
  const KeyRange keys = keys_seen(a, query, text.tokens - 1);
  const float *q = text.at(a.q, query) + head * a.key_dim, *by_query = text.at(a.by_query, query);
  double largest = text.sinks ? double{text.sinks[head]} : -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t key = keys.first; key <= keys.last; ++key) {
    const float* k = text.at(a.k, key) + head / group * a.key_dim;
    double product = 0;
    for (std::int32_t c = 0; c < a.key_dim; ++c) product += static_cast<double>(q[c]) * k[c];
    const double score = text.score(head, query, key, product, by_query, text.at(a.by_key, key));
    scores[static_cast<std::size_t>(key)] = score;
    largest = std::max(largest, score);
  }
  if (text.sinks) sum = std::exp(text.sinks[head] - largest);
  for (std::int64_t key = keys.first; key <= keys.last; ++key) {
    double& score = scores[static_cast<std::size_t>(key)];
    sum += score = std::exp(score - largest);
  }
  std::fill_n(out, text.tokens, 0.0f);
  for (std::int64_t key = keys.first; key <= keys.last; ++key) out[key] = static_cast<float>(scores[static_cast<std::size_t>(key)] / sum);
}

}  // namespace

void attention_weights(const Attend& a, const Weights& weights, std::span<const float> rows, std::int64_t width, Backend& host,
                       std::span<float> out, const Cancel& cancel) {
  const auto values = [&](VectorId id) -> const float* {
    return id == VectorId::none ? nullptr : weights.vectors[static_cast<std::size_t>(id)].values.data();
  };
  const Text text{.attend = a,
                  .score = {a, values(a.bias), values(a.slopes), values(a.places)},
                  .sinks = values(a.sinks),
                  .rows = rows.data(),
                  .width = width,
                  .tokens = static_cast<std::int64_t>(rows.size()) / width};
  const std::int64_t tokens = text.tokens, block = std::clamp<std::int64_t>(kScoresOfJob / tokens, 1, tokens);
  const std::int64_t blocks = ceil_div(tokens, block), jobs = a.q.width / a.key_dim * blocks;
  std::vector<std::vector<double>> scores(static_cast<std::size_t>(host.workers()), std::vector<double>(static_cast<std::size_t>(tokens)));
  const std::int64_t jobs_of_call = kJobsOfWorker * host.workers();
  for (std::int64_t first = 0; first < jobs; first += jobs_of_call) {
    const auto job = [&](std::int64_t index, int worker) {
      const std::int64_t head = (first + index) / blocks, begin = (first + index) % blocks * block;
      for (std::int64_t query = begin; query < std::min(tokens, begin + block); ++query)
        weights_of_query(text, head, query, scores[static_cast<std::size_t>(worker)], out.data() + (head * tokens + query) * tokens);
    };
    host.parallel(std::min(jobs_of_call, jobs - first), job, cancel);
  }
}

}  // namespace pumice::engine
