// Programs whose matrices may go in codes of 8 bits, with a norm's weight folded in: near the floats whatever the norm's weights are and
// wherever the rows come from, and the same bits in any company.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cases.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_weights.h"

namespace pumice::cpu {
namespace {

using cases::Random;
constexpr std::int32_t kWidth = 128, kOutputs = 40, kRows = 29;

struct Model {
  Weights weights;
  Program whole, apart;  // norm and products; products of rows that come from elsewhere

  MatrixId matrix(Random& random, std::int32_t rows, bool in_bytes) {
    const auto values = std::make_shared<std::vector<float>>(random.normals(rows * kWidth, 0.1f));
    const auto floats = [values](std::int64_t first, std::int64_t count, float* out) {
      std::memcpy(out, values->data() + first * kWidth, static_cast<std::size_t>(count * kWidth) * sizeof(float));
    };
    Matrix m{.name = str("m", weights.matrices.size()), .format = Format::Q8_0, .rows = rows, .cols = kWidth, .may_round = true};
    m.read = [floats, bytes = row_bytes(Format::Q8_0, kWidth)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
      std::vector<float> row(kWidth);
      for (std::int64_t r = 0; r < count; ++r) {
        floats(first + r, 1, row.data());
        pack(Format::Q8_0, row.data(), kWidth, out + r * bytes);
      }
    };
    m.narrow = {.floats = floats, .in_bytes = in_bytes, .norm_weight = VectorId{0}, .norm_bias = VectorId{1}};
    weights.matrices.push_back(std::move(m));
    return static_cast<MatrixId>(weights.matrices.size() - 1);
  }
};

Model model() {
  Random random(5);
  Model m;
  std::vector<float> weight = random.normals(kWidth, 0.5f, 1.0f), bias = random.normals(kWidth, 0.3f);
  weight[3] = 0.0f;    // nothing to divide by
  weight[4] = 1e-9f;   // nor here, beside its bias
  weight[5] = -40.0f;  // a column that stands apart
  m.weights.vectors = {{"norm", weight}, {"norm.bias", bias}, {"bias", random.normals(kOutputs, 0.2f)}};
  const MatrixId q = m.matrix(random, kOutputs, true), k = m.matrix(random, kOutputs, true), v = m.matrix(random, kOutputs, false);
  const View in{0, 0, kWidth}, x{1, 0, kWidth}, out{2, 0, 3 * kOutputs};
  const std::vector<SlotShape> slots = {{Rows::tokens, kWidth}, {Rows::tokens, kWidth}, {Rows::tokens, 3 * kOutputs}};
  const Linear linear{.in = x, .out = out, .parts = {{q, VectorId{2}}, {k}, {v, VectorId{2}}}};
  const Norm norm{.in = in, .out = x, .weight = VectorId{0}, .bias = VectorId{1}, .kind = NormKind::layer};
  m.whole = {.name = "whole", .ops = {norm, linear}, .slots = slots, .input = 0, .output = 2};
  m.apart = {.name = "apart", .ops = {linear}, .slots = slots, .input = 1, .output = 2};
  return m;
}

std::vector<float> run(const Model& m, const Program& program, const std::vector<float>& in, int threads, bool floats = false) {
  Weights weights = m.weights;
  if (floats) {  // the matrices as they were
    for (Matrix& matrix : weights.matrices) {
      matrix.format = Format::F32;
      matrix.read = [read = matrix.narrow.floats](std::int64_t first, std::int64_t count, std::uint8_t* out) {
        read(first, count, reinterpret_cast<float*>(out));
      };
      matrix.narrow = {};
      matrix.may_round = false;
    }
  }
  const auto backend = make_backend(threads);
  const Compute compute = floats ? Compute::float32 : Compute::automatic;
  const auto executable = backend->prepare(program, backend->pack(weights, {}, {}, Cancel()), compute, Cancel());
  const auto rows = static_cast<std::int32_t>(in.size() / kWidth);
  std::vector<float> out(static_cast<std::size_t>(rows) * 3 * kOutputs);
  executable->run(*backend->make_workspace(Crew::team), nullptr, {.rows = rows}, {in, out}, Cancel());
  return out;
}

double nmse(const std::vector<float>& found, const std::vector<float>& expected, std::int32_t first, std::int32_t count) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto col = static_cast<std::int32_t>(i % (3 * kOutputs));
    if (col < first || col >= first + count) continue;
    error += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    power += double{expected[i]} * expected[i];
  }
  return error / power;
}

TEST(Narrow, ProductsAreNearTheFloats) {
  const Model m = model();
  const std::vector<float> in = Random(6).normals(kRows * kWidth, 2.0f, 0.5f);
  for (const Program* program : {&m.whole, &m.apart}) {
    const auto found = run(m, *program, in, 2), expected = run(m, *program, in, 2, true);
    // Rows that no norm made differ in size by column once its weight is divided out: 2.1e-4.
    EXPECT_LT(nmse(found, expected, 0, 2 * kOutputs), program == &m.whole ? 1.5e-4 : 3e-4) << program->name;
    EXPECT_LT(nmse(found, expected, 2 * kOutputs, kOutputs), 2e-7) << program->name;  // 13 bits by 14
  }
}

TEST(Narrow, ARowsBitsDependOnNothingElse) {
  const Model m = model();
  const std::vector<float> in = Random(7).normals(kRows * kWidth, 2.0f, 0.5f);
  const auto whole = run(m, m.whole, in, 1);
  EXPECT_EQ(run(m, m.whole, in, 3), whole);
  for (std::int32_t r = 0; r < kRows; ++r) {
    const std::vector<float> row(in.begin() + r * kWidth, in.begin() + (r + 1) * kWidth);
    const auto alone = run(m, m.whole, row, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + r * 3 * kOutputs)) << r;
  }
}

TEST(Narrow, PackedBytesAreThoseThatCostForesees) {
  const Model m = model();
  const auto backend = make_backend(1);
  const std::uint64_t vectors = (2 * kWidth + kOutputs) * sizeof(float);
  EXPECT_EQ(backend->cost(m.whole, shapes_of(m.weights), KvFormat::f16, 1).weights + vectors,
            backend->pack(m.weights, {}, {}, Cancel())->bytes());
}

}  // namespace
}  // namespace pumice::cpu
