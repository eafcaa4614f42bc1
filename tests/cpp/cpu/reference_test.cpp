// The reference backend must return the numbers that were worked out by hand here. All tests of other backends rely on it.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "reference/reference_backend.h"

namespace pumice {
namespace {

struct Device {
  Program program;
  Weights weights;

  View slot(std::int32_t width, Rows rows = Rows::tokens) {
    program.slots.push_back({rows, width});
    return {static_cast<std::int32_t>(program.slots.size()) - 1, 0, width};
  }
  VectorId vector(std::vector<float> values) {
    weights.vectors.push_back({"v", std::move(values)});
    return static_cast<VectorId>(weights.vectors.size() - 1);
  }
  MatrixId matrix(std::int64_t rows, std::int64_t cols, std::vector<float> values) {
    const auto read = [cols, values = std::move(values)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
      pack(Format::F32, values.data() + first * cols, count * cols, out);
    };
    weights.matrices.push_back({"m", Format::F32, rows, cols, read});
    return static_cast<MatrixId>(weights.matrices.size() - 1);
  }
  std::vector<float> run(const Batch& batch, std::vector<float> in, std::size_t out_numbers, CacheStore* caches = nullptr) {
    reference::ReferenceBackend backend;
    const auto executable = backend.prepare(program, backend.pack(weights, {}, {}, Cancel()), Compute::automatic);
    std::vector<float> out(out_numbers);
    executable->run(*backend.make_workspace(Crew::team), caches, batch, {in, out}, Cancel());
    return out;
  }
};

void expect_near(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * (1 + std::fabs(want[i]))) << i;
}

TEST(Reference, EmbedsTokensPositionsAndTypes) {
  Device d;
  const View out = d.slot(2);
  const MatrixId tokens = d.matrix(3, 2, {1, 2, 3, 4, 5, 6}), positions = d.matrix(4, 2, {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f});
  d.program.ops = {Embed{out, tokens, positions, d.matrix(2, 2, {10, 20, 30, 40}), 2.0f}};
  d.program.output = out.slot;
  const std::vector<std::int32_t> ids = {2, 0}, types = {0, 1};
  const std::vector<Segment> segments = {{0, 2, 2, {}}};
  expect_near(d.run({.rows = 2, .ids = ids, .types = types, .segments = segments}, {}, 4), {20.5, 32.6, 32.7, 44.8});
  const std::vector<std::int32_t> beyond = {3, 0};
  EXPECT_THROW(d.run({.rows = 2, .ids = beyond, .segments = segments}, {}, 4), Error);
}

TEST(Reference, Norms) {
  Device d;
  const View x = d.slot(4), rms = d.slot(4), layer = d.slot(4);
  d.program.ops = {Norm{.in = x, .out = rms, .weight = d.vector({1, 2}), .group = 2, .eps = 0}, Norm{.in = x,
                                                                                                     .out = layer,
                                                                                                     .add = rms,
                                                                                                     .weight = d.vector({1, 1, 1, 10}),
                                                                                                     .bias = d.vector({0, 0, 5, 0}),
                                                                                                     .kind = NormKind::layer,
                                                                                                     .eps = 0.25f}};
  d.program.input = x.slot, d.program.output = rms.slot;
  // The groups (3, 4) and (1, 7) have mean squares of 12.5 and 25.
  expect_near(d.run({.rows = 1}, {3, 4, 1, 7}, 4), {3 / std::sqrt(12.5), 8 / std::sqrt(12.5), .2, 2.8});
  d.program.output = layer.slot;
  // The mean is 3.75, the variance (0.5625 + 0.0625 + 7.5625 + 10.5625) / 4 = 4.6875. With eps = 0.25 the divisor is the square root
  // of 4.9375.
  const double root = std::sqrt(4.9375);
  expect_near(d.run({.rows = 1}, {3, 4, 1, 7}, 4),
              {-.75 / root + 3 / std::sqrt(12.5), .25 / root + 8 / std::sqrt(12.5), -2.75 / root + 5.2, 32.5 / root + 2.8});
}

TEST(Reference, LinearPartsBiasActivationResidual) {
  Device d;
  const View x = d.slot(2), out = d.slot(3);
  d.program.ops = {Linear{.in = x,
                          .out = out,
                          .parts = {{d.matrix(1, 2, {1, 1}), VectorId::none}, {d.matrix(2, 2, {1, -1, 0, 2}), d.vector({.5f, 0})}},
                          .activation = Activation::relu}};
  d.program.input = x.slot, d.program.output = out.slot;
  expect_near(d.run({.rows = 2}, {1, 2, 5, 3}, 6), {3, 0, 4, 8, 2.5, 6});
  d.program.ops = {Linear{.in = x, .out = x, .parts = {{d.matrix(2, 2, {0, 1, 1, 0}), VectorId::none}}, .residual = x}};
  d.program.output = x.slot;
  expect_near(d.run({.rows = 1}, {1, 20}, 2), {21, 21});
}

TEST(Reference, LinearScalesCapsAndLearnsXielu) {
  Device d;
  const View x = d.slot(1), out = d.slot(1);
  d.program.input = x.slot, d.program.output = out.slot;
  Linear op{.in = x, .out = out, .parts = {{d.matrix(1, 1, {2}), d.vector({.5f})}}, .residual = x, .scale = 3, .softcap = 4};
  d.program.ops = {op};
  expect_near(d.run({.rows = 2}, {1, -2}, 2), {4 * std::tanh(6.5 / 4) + 1, 4 * std::tanh(-11.5 / 4) - 2});
  op.softcap = 0;
  op.residual = {};
  op.parts[0].bias = VectorId::none;
  op.scale = .5f;
  op.activation = Activation::xielu;
  op.alpha_p = 2;
  op.alpha_n = 3;
  d.program.ops = {op};
  // For x > 0 the value is 2 x^2 + x / 2. Otherwise it is 3 (e^y - 1 - x) + x / 2, where y is x clamped to at most -1e-6.
  expect_near(d.run({.rows = 3}, {1.5, -2, 0}, 3), {5.25, 3 * (std::exp(-2.0) + 1) - 1, 3 * std::expm1(-1e-6)});
}

TEST(Reference, MultipliesByColumnsOfGates) {
  Device d;
  const View a = d.slot(7), out = d.slot(4);
  d.program.input = a.slot, d.program.output = out.slot;
  d.program.ops = {Multiply{.a = {0, 0, 4}, .b = {0, 4, 2}, .out = out, .activation = Activation::relu}};
  expect_near(d.run({.rows = 1}, {1, 2, 3, 4, -5, 6, 7}, 4), {0, 0, 18, 24});
  d.program.ops = {Multiply{.a = {0, 0, 4}, .b = {0, 6, 1}, .out = out}};
  expect_near(d.run({.rows = 1}, {1, 2, 3, 4, -5, 6, 7}, 4), {7, 14, 21, 28});
  d.program.ops = {Multiply{.a = {0, 0, 4}, .b = {0, 6, 1}, .out = out, .scale = -.5f}};
  expect_near(d.run({.rows = 1}, {1, 2, 3, 4, -5, 6, 7}, 4), {-3.5, -7, -10.5, -14});
  d.program.ops = {Multiply{.a = {0, 2, 4}, .b = {}, .out = out, .scale = 2}};
  expect_near(d.run({.rows = 1}, {1, 2, 3, 4, -5, 6, 7}, 4), {6, 8, -10, 12});
}

TEST(Reference, GatesWithBiases) {
  Device d;
  const View x = d.slot(1), out = d.slot(1);
  d.program.ops = {GatedLinear{.in = x,
                               .out = out,
                               .gate = d.matrix(1, 1, {1}),
                               .up = d.matrix(1, 1, {3}),
                               .gate_bias = d.vector({-1}),
                               .up_bias = d.vector({10}),
                               .activation = Activation::relu2}};
  d.program.input = x.slot, d.program.output = out.slot;
  expect_near(d.run({.rows = 2}, {3, .5f}, 2), {4 * 19, 0});
}

// The expected values of gelu, gelu_tanh and silu at 1 and -2 come from torch.nn.functional, to seven digits.
TEST(Reference, GatedActivations) {
  const struct {
    Activation activation;
    double one, minus_two;
  } known[] = {{Activation::gelu, 0.8413447, -0.0455003},
               {Activation::gelu_tanh, 0.8411920, -0.0454023},
               {Activation::silu, 0.7310586, -0.2384058},
               {Activation::tanh, 0.7615942, -0.9640276},
               {Activation::relu, 1, 0},
               {Activation::none, 1, -2},
               {Activation::relu2, 1, 0},
               {Activation::sigmoid, 0.7310586, 0.1192029},
               {Activation::quick_gelu, 0.8457958, -0.0643414},
               {Activation::softplus, 1.3132617, 0.1269280}};
  EXPECT_EQ(std::size(known), std::size(kActivations) - 1);  // all but xielu, which only Linear has
  for (const auto& [activation, one, minus_two] : known) {
    Device d;
    const View x = d.slot(1), out = d.slot(1);
    d.program.ops = {GatedLinear{.in = x, .out = out, .gate = d.matrix(1, 1, {1}), .up = d.matrix(1, 1, {3}), .activation = activation}};
    d.program.input = x.slot, d.program.output = out.slot;
    expect_near(d.run({.rows = 2}, {1, -2}, 2), {3 * one, -6 * minus_two});
  }
}

// The head has two pairs of columns. At position 3, pair 0 is rotated by 3 radians and pair 1 by 1.5. Both are multiplied by 2.
TEST(Reference, RopeTurnsPairs) {
  const double c = std::cos(3), s = std::sin(3), c2 = std::cos(1.5), s2 = std::sin(1.5);
  for (const bool interleaved : {false, true}) {
    Device d;
    const View q = d.slot(4);
    d.program.ops = {Rope{.x = q, .head_dim = 4, .table = {{1, .5f}, interleaved, 2}}};
    d.program.input = d.program.output = q.slot;
    const std::vector<Segment> segments = {{0, 1, 3, {}}};
    const auto got = d.run({.rows = 1, .segments = segments}, {1, 0, 0, 1}, 4);
    if (interleaved) {
      expect_near(got, {2 * c, 2 * s, -2 * s2, 2 * c2});  // pair 0 is (1, 0), pair 1 is (0, 1)
    } else {
      // Pair 0 is (1, 0) in columns 0 and 2, pair 1 is (0, 1) in columns 1 and 3.
      expect_near(got, {2 * c, -2 * s2, 2 * s, 2 * c2});
    }
  }
}

// The factor is 1 + temperature * ln(1 + floor(position / temperature_length)). It is 1 for positions 0 and 1, and 1 + 0.5 ln 3 for 5.
// temperature_offset is added to the position.
TEST(Reference, RopeTempers) {
  Device d;
  const View q = d.slot(2);
  d.program.ops = {Rope{.x = q, .head_dim = 2, .table = {}, .temperature = .5f, .temperature_length = 2}};
  d.program.input = d.program.output = q.slot;
  const std::vector<Segment> segments = {{0, 2, 0, {}}, {2, 1, 5, {}}};
  const double factor = 1 + .5 * std::log(3.0);
  expect_near(d.run({.rows = 3, .segments = segments}, {1, 2, 3, 4, 5, 6}, 6), {1, 2, 3, 4, 5 * factor, 6 * factor});
  std::get<Rope>(d.program.ops.front()).temperature_offset = 1;
  const double second = 1 + .5 * std::log(2.0), sixth = 1 + .5 * std::log(4.0);
  expect_near(d.run({.rows = 3, .segments = segments}, {1, 2, 3, 4, 5, 6}, 6), {1, 2, 3 * second, 4 * second, 5 * sixth, 6 * sixth});
}

// Keys are zero, so a score is only the bias, or -slope * distance. The values 1, 10 and 100 are weighted by the scores' exponentials.
TEST(Reference, AttendsByDistance) {
  const float two = static_cast<float>(std::log(2.0)), three = static_cast<float>(std::log(3.0));
  Device d;
  const View x = d.slot(3), out = d.slot(1);
  Attend op{.q = {x.slot, 0, 1}, .out = out, .k = {x.slot, 1, 1}, .v = {x.slot, 2, 1}, .key_dim = 1, .value_dim = 1, .kv_heads = 1};
  d.program.input = x.slot, d.program.output = out.slot;
  const std::vector<Segment> segments = {{0, 3, 0, {}}};
  const auto run = [&] {
    d.program.ops = {op};
    return d.run({.rows = 3, .segments = segments}, {0, 0, 1, 0, 0, 10, 0, 0, 100}, 3);
  };
  op.causal = true;
  expect_near(run(), {1, 5.5, 37});
  op.window = 2;
  expect_near(run(), {1, 5.5, 55});
  op.window = 0;
  op.chunk = 2;
  expect_near(run(), {1, 5.5, 100});
  op.chunk = 0;
  op.causal = false;
  // The biases are for keys before, at and after the query's position. Keys at distance 2 get the bias of distance 1.
  op.bias = d.vector({0, two, three});
  op.reach = 1;
  expect_near(run(), {(2 + 30 + 300) / 8.0, (1 + 20 + 300) / 6.0, (1 + 10 + 200) / 4.0});
  op.bias = VectorId::none;
  op.slopes = d.vector({two});
  expect_near(run(), {(1 + 5 + 25) / 1.75, (.5 + 10 + 50) / 2, (.25 + 5 + 100) / 1.75});
  op.slopes = VectorId::none;
  op.sinks = d.vector({three});  // the sink weighs as much as three keys, and adds no value
  expect_near(run(), {111 / 6.0, 111 / 6.0, 111 / 6.0});
}

// Keys of zero give equal weights, so each output is the mean of the values that its row sees. The value at position i is i.
TEST(Reference, AttendSeesItsPastAndItsWindow) {
  Device d;
  const View q = d.slot(4), out = d.slot(4);
  const View k{q.slot, 2, 1}, v{q.slot, 3, 1}, heads{q.slot, 0, 2};  // two query heads share one kv head; each has one dimension
  d.program.caches = {{1, 1, 1}};
  d.program.ops = {Store{.k = k, .v = v, .cache = CacheId{0}}};
  d.program.input = q.slot;
  reference::ReferenceBackend backend;
  const auto mean_of = [&](std::int32_t window, bool cached) {
    const auto caches = backend.make_caches(d.program, KvFormat::f16);
    caches->reserve(3);
    Attend attend{.q = heads, .out = {out.slot, 0, 2}, .key_dim = 1, .value_dim = 1, .kv_heads = 1, .causal = cached, .window = window};
    if (cached) {
      attend.cache = CacheId{0};
    } else {
      attend.k = k, attend.v = v;
    }
    d.program.ops.resize(1);
    d.program.ops.push_back(attend);
    d.program.output = out.slot;
    const std::vector<std::int32_t> pages = {2, 0};
    std::vector<float> in, rows;
    for (int i = 0; i < 40; ++i) in.insert(in.end(), {1, 1, 0, static_cast<float>(i)});
    for (const auto& [first, count] : {std::pair{0, 34}, std::pair{34, 6}}) {  // two runs; the second begins at position 34
      if (!cached && first > 0) break;
      const std::int32_t n = cached ? count : 40;
      const std::vector<Segment> segments = {{0, n, first, pages}};
      const auto out = d.run({.rows = n, .segments = segments}, {in.begin() + 4 * first, in.begin() + 4 * (first + n)},
                             static_cast<std::size_t>(4 * n), caches.get());
      for (std::int32_t r = 0; r < n; ++r) {
        EXPECT_EQ(out[4 * r], out[4 * r + 1]);
        rows.push_back(out[4 * r]);
      }
    }
    return rows;
  };
  for (const auto& [window, first_of_37] : {std::pair{0, 0}, std::pair{10, 28}}) {
    const auto rows = mean_of(window, true);
    EXPECT_NEAR(rows[37], (first_of_37 + 37) / 2.0, 1e-6);
    EXPECT_NEAR(rows[3], 1.5, 1e-6);
  }
  EXPECT_NEAR(mean_of(0, false)[3], 19.5, 1e-6);
  EXPECT_NEAR(mean_of(10, false)[3], 6.5, 1e-6);    // sees rows 0 to 13
  EXPECT_NEAR(mean_of(10, false)[20], 20, 1e-6);    // sees rows 10 to 30
  EXPECT_NEAR(mean_of(10, false)[38], 33.5, 1e-6);  // sees rows 28 to 39
}

// The first row's scores, ln 1 and ln 3, weight the values 0 and 4 by 1/4 and 3/4. A soft cap changes the scores before the softmax.
TEST(Reference, AttendWeighsAndCaps) {
  for (const float softcap : {0.0f, 0.5f}) {
    Device d;
    const View x = d.slot(3), out = d.slot(1);
    d.program.ops = {Attend{.q = {x.slot, 0, 1},
                            .out = out,
                            .k = {x.slot, 1, 1},
                            .v = {x.slot, 2, 1},
                            .key_dim = 1,
                            .value_dim = 1,
                            .kv_heads = 1,
                            .scale = 0.5f,
                            .softcap = softcap}};
    d.program.input = x.slot, d.program.output = out.slot;
    const std::vector<Segment> segments = {{0, 2, 0, {}}};
    const auto got = d.run({.rows = 2, .segments = segments}, {2, 0, 0, 4, static_cast<float>(std::log(3.0)), 4}, 2);
    const auto mixed = [&](double score) {
      const double e = std::exp(softcap > 0 ? softcap * std::tanh(score / softcap) : score);
      return 4 * e / (1 + e);
    };
    expect_near(got, {mixed(std::log(3.0)), mixed(2 * std::log(3.0))});
    if (softcap == 0) expect_near(got, {3, 3.6});
  }
}

TEST(Reference, SelectsAndPools) {
  Device d;
  const View x = d.slot(1), some = d.slot(1, Rows::selected), pooled = d.slot(1, Rows::segments);
  d.program.input = x.slot;
  const std::vector<float> in = {1, 5, 3, 7, -2};
  const std::vector<Segment> segments = {{0, 4, 0, {}}, {4, 1, 0, {}}};
  const std::vector<std::int32_t> selected = {1, 4};
  const Batch batch{.rows = 5, .segments = segments, .selected = selected};
  d.program.ops = {Select{x, some}};
  d.program.output = some.slot;
  expect_near(d.run(batch, in, 2), {5, -2});
  d.program.output = pooled.slot;
  const std::pair<PoolKind, double> known[] = {{PoolKind::mean, 4}, {PoolKind::cls, 1},           {PoolKind::last, 7},
                                               {PoolKind::max, 7},  {PoolKind::mean_sqrt_len, 8}, {PoolKind::weighted_mean, 4.8}};
  for (const auto& [kind, value] : known) {
    d.program.ops = {Pool{x, pooled, kind}};
    expect_near(d.run(batch, in, 2), {value, -2});
  }
}

TEST(Reference, LogProbabilities) {
  Device d;
  const View x = d.slot(4), out = d.slot(1);
  d.program.ops = {LogProb{x, out}};
  d.program.input = x.slot, d.program.output = out.slot;
  const std::vector<std::int32_t> ids = {3, 0};
  const auto log = [](double p) { return static_cast<float>(std::log(p)); };
  expect_near(d.run({.rows = 2, .ids = ids}, {500, 500, 500, 500, log(1), log(2), log(3), log(4)}, 2), {std::log(.25), std::log(.1)});
}

TEST(Reference, PagesAreCopiedAndUnwrittenOnesAreNaN) {
  reference::ReferenceBackend backend;
  Device d;
  const View x = d.slot(3), out = d.slot(1);
  d.program.caches = {{1, 1, 1}};
  const Attend attend{.q = {x.slot, 0, 1}, .out = out, .cache = CacheId{0}, .key_dim = 1, .value_dim = 1, .kv_heads = 1, .causal = true};
  d.program.ops = {Store{.k = {x.slot, 1, 1}, .v = {x.slot, 2, 1}, .cache = CacheId{0}}, attend};
  d.program.input = x.slot, d.program.output = out.slot;
  const auto caches = backend.make_caches(d.program, KvFormat::f32);
  caches->reserve(1);
  const std::vector<std::int32_t> first = {0}, second = {1};
  const std::vector<Segment> start = {{0, 1, 0, first}}, fork = {{0, 1, 1, second}};
  expect_near(d.run({.rows = 1, .segments = start}, {0, 0, 8}, 1, caches.get()), {8});
  EXPECT_THROW(d.run({.rows = 1, .segments = fork}, {0, 0, 2}, 1, caches.get()), Error) << "page 1 is not reserved";
  caches->reserve(2);
  EXPECT_TRUE(std::isnan(d.run({.rows = 1, .segments = fork}, {0, 0, 2}, 1, caches.get())[0]));
  caches->copy_page(0, 1);
  expect_near(d.run({.rows = 1, .segments = fork}, {0, 0, 2}, 1, caches.get()), {5});
}

}  // namespace
}  // namespace pumice
