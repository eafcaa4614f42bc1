// attention_weights() must return the weights that attention on the CPU backend uses. The values of the test are rows of the identity
// matrix, so that the result of attention is its weights.
#include "engine/attention_weights.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cases.h"
#include "core/program_check.h"
#include "cpu/cpu_backend.h"

namespace pumice::engine {
namespace {

constexpr std::int32_t kTokens = 13, kDim = 16, kHeads = 4, kKvHeads = 2, kPlaces = 6, kReach = 4;
constexpr std::int32_t kQ = kHeads * kDim, kKv = kKvHeads * kDim, kWidth = kQ + 2 * kKv + 2 * kHeads * kPlaces;

struct Case {
  Attend attend{.q = {0, 0, kQ},
                .out = {1, 0, kQ},
                .k = {0, kQ, kKv},
                .v = {0, kQ + kKv, kKv},
                .key_dim = kDim,
                .value_dim = kDim,
                .kv_heads = kKvHeads,
                .scale = 0.25f};
  Weights weights;
  std::vector<float> rows;

  Case() {
    cases::Random random(11);
    rows = random.normals(kTokens * kWidth, 1.0f);
    for (std::int32_t t = 0; t < kTokens; ++t) {
      float* v = rows.data() + t * kWidth + attend.v.col;
      std::fill_n(v, kKv, 0.0f);
      for (std::int32_t head = 0; head < kKvHeads; ++head) v[head * kDim + t] = 1.0f;
    }
    std::vector<float> places(2 * kReach + 1);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<float>((i * 5) % kPlaces);
    weights.vectors = {{"bias", random.normals(kHeads * (2 * kReach + 1), 1.0f)},
                       {"slopes", {0.1f, 0.4f, 0.2f, 0.8f}},
                       {"places", places},
                       {"sinks", {-1.0f, 0.5f, 3.0f, -9.0f}}};
  }

  // Returns the result of attention_weights(): heads x tokens x tokens numbers.
  std::vector<float> found(Backend& host) const {
    std::vector<float> out(kHeads * kTokens * kTokens);
    attention_weights(attend, weights, rows, kWidth, host, out, Cancel());
    return out;
  }
  std::vector<float> expected(Backend& backend) const {
    const Program program{
        .name = "weights", .ops = {attend}, .slots = {{Rows::tokens, kWidth}, {Rows::tokens, kQ}}, .input = 0, .output = 1};
    const auto executable = backend.prepare(program, backend.pack(weights, {}, {}, Cancel()), Compute::float32);
    const Segment text{.first = 0, .rows = kTokens, .length = kTokens};
    std::vector<float> mixed(kTokens * kQ), out(kHeads * kTokens * kTokens);
    executable->run(*backend.make_workspace(Crew::team), nullptr, {.rows = kTokens, .segments = {&text, 1}}, {rows, mixed}, Cancel());
    for (std::int32_t head = 0; head < kHeads; ++head) {
      for (std::int32_t i = 0; i < kTokens; ++i)
        std::copy_n(mixed.begin() + i * kQ + head * kDim, kTokens, out.begin() + (head * kTokens + i) * kTokens);
    }
    return out;
  }
};

void expect_near(const Case& c, const char* what) {
  const auto backend = cpu::make_backend(2);
  const auto found = c.found(*backend), expected = c.expected(*backend);
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-5f) << what << ", value " << i;
  for (std::size_t row = 0; row < found.size(); row += kTokens) {  // a row sums to 1, or to less if a sink takes a part
    const double sum = std::accumulate(found.begin() + row, found.begin() + row + kTokens, 0.0);
    if (c.attend.sinks == VectorId::none) {
      EXPECT_NEAR(sum, 1.0, 1e-6) << what;
    } else {
      EXPECT_LT(sum, 1.0 + 1e-6) << what;
    }
  }
  EXPECT_EQ(c.found(*cpu::make_backend(1)), found) << what << ": by any number of workers";
}

TEST(AttentionWeights, AreThoseThatAttentionMixesBy) {
  for (const bool causal : {false, true}) {
    for (const std::int32_t window : {0, 3}) {
      Case c;
      c.attend.causal = causal;
      c.attend.window = window;
      expect_near(c, "plain");
      Case capped = c;
      capped.attend.softcap = 0.5f;
      expect_near(capped, "softcap");
      Case bias = c;
      bias.attend.bias = VectorId{0};
      bias.attend.reach = kReach;
      expect_near(bias, "bias");
      Case slopes = c;
      slopes.attend.slopes = VectorId{1};
      expect_near(slopes, "slopes");
      Case sinks = c;
      sinks.attend.sinks = VectorId{3};
      expect_near(sinks, "sinks");
    }
  }
}

TEST(AttentionWeights, LookAtPlacesToo) {
  for (const bool by_query : {false, true}) {
    for (const bool by_key : {false, true}) {
      if (!by_query && !by_key) continue;
      Case c;
      c.attend.places = VectorId{2};
      c.attend.reach = kReach;
      if (by_query) c.attend.by_query = {0, kQ + 2 * kKv, kHeads * kPlaces};
      if (by_key) c.attend.by_key = {0, kQ + 2 * kKv + kHeads * kPlaces, kHeads * kPlaces};
      expect_near(c, "places");
    }
  }
}

TEST(AttentionWeights, StopWhenTheyAreCancelled) {
  const Case c;
  std::vector<float> out(kHeads * kTokens * kTokens);
  Cancel cancel;
  cancel.request();
  EXPECT_THROW(attention_weights(c.attend, c.weights, c.rows, kWidth, *cpu::make_backend(1), out, cancel), Error);
}

}  // namespace
}  // namespace pumice::engine
