// Programs whose matrices are rounded to 8-bit codes after the weight of the preceding norm was folded into them. Results must be near
// those of float matrices, whatever the norm's weights are, and also in a program without the norm. A row's bits must be the same in any
// batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cases.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_weights.h"

namespace pumice::cpu::narrow_test {
namespace {

using cases::Random;
constexpr std::int32_t kWidth = 128, kOutputs = 40, kRows = 29;

struct Model {
  Weights weights;
  Program whole;  // a norm and the matrix products of its output
  Program apart;  // the same matrix products of the program's input, without the norm

  MatrixId matrix(Random& random, std::int32_t rows, Rounding rounding) {
    const auto values = std::make_shared<std::vector<float>>(random.normals(rows * kWidth, 0.1f));
    const auto floats = [values](std::int64_t first, std::int64_t count, float* out) {
      std::memcpy(out, values->data() + first * kWidth, static_cast<std::size_t>(count * kWidth) * sizeof(float));
    };
    Matrix m{.name = str("m", weights.matrices.size()), .format = Format::Q8_0, .rows = rows, .cols = kWidth};
    m.read = [floats, bytes = row_bytes(Format::Q8_0, kWidth)](std::int64_t first, std::int64_t count, std::uint8_t* out) {
      std::vector<float> row(kWidth);
      for (std::int64_t r = 0; r < count; ++r) {
        floats(first + r, 1, row.data());
        pack(Format::Q8_0, row.data(), kWidth, out + r * bytes);
      }
    };
    m.rounding = rounding;
    m.read_floats = floats;
    weights.matrices.push_back(std::move(m));
    return static_cast<MatrixId>(weights.matrices.size() - 1);
  }
};

Model model() {
  Random random(5);
  Model m;
  std::vector<float> weight = random.normals(kWidth, 0.5f, 1.0f), bias = random.normals(kWidth, 0.3f);
  weight[3] = 0.0f;    // folding divides by the weight, which is impossible here
  weight[4] = 1e-9f;   // and not accurate here, because the weight is tiny compared with the bias
  weight[5] = -40.0f;  // makes one column much larger than the others
  m.weights.vectors = {{"norm", weight}, {"norm.bias", bias}, {"bias", random.normals(kOutputs, 0.2f)}};
  const MatrixId q = m.matrix(random, kOutputs, Rounding::bytes), k = m.matrix(random, kOutputs, Rounding::bytes),
                 v = m.matrix(random, kOutputs, Rounding::floats);
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
  if (floats) {  // run with the float matrices, which are not rounded
    for (Matrix& matrix : weights.matrices) {
      matrix.format = Format::F32;
      matrix.read = [read = matrix.read_floats](std::int64_t first, std::int64_t count, std::uint8_t* out) {
        read(first, count, reinterpret_cast<float*>(out));
      };
      matrix.read_floats = {};
      matrix.rounding = Rounding::none;
    }
  }
  const auto backend = make_backend(threads);
  const Compute compute = floats ? Compute::float32 : Compute::automatic;
  const Program* const packed_for[] = {&m.whole};
  const auto executable = backend->prepare(program, backend->pack(weights, packed_for, {}, Cancel()), compute, Cancel());
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
    // In the program without the norm, activations are divided by the folded norm weight, which makes columns of different sizes. So the
    // error is larger (measured: 2.1e-4).
    EXPECT_LT(nmse(found, expected, 0, 2 * kOutputs), program == &m.whole ? 1.5e-4 : 3e-4) << program->name;
    EXPECT_LT(nmse(found, expected, 2 * kOutputs, kOutputs), 2e-7) << program->name;  // v: 13-bit weight codes, 14-bit activation codes
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
  const Program* const programs[] = {&m.whole};
  for (const Program* program : {&m.whole, &m.apart}) {  // one program with the norm, one without
    EXPECT_EQ(backend->cost(*program, shapes_of(m.weights), KvFormat::f16, 1).weights + vectors,
              backend->pack(m.weights, programs, {}, Cancel())->bytes());
  }
}

TEST(Narrow, ANormIsFoldedIntoWhatMultipliesItsOutputInBytes) {
  const Model m = model();
  Team team(1);
  const Program* const programs[] = {&m.whole};
  const PackedWeights packed(m.weights, programs, team, {}, Cancel());
  EXPECT_NE(packed.matrix(MatrixId{0}).folded, nullptr);
  EXPECT_EQ(packed.matrix(MatrixId{0}).folded, packed.matrix(MatrixId{1}).folded);
  EXPECT_EQ(packed.matrix(MatrixId{2}).folded, nullptr) << "13 bits hold the columns as they are";
  const Program* const without[] = {&m.apart};
  EXPECT_EQ(PackedWeights(m.weights, without, team, {}, Cancel()).matrix(MatrixId{0}).folded, nullptr);
}

TEST(Narrow, TheNormBeforeAProductIsTheOneThatMadeItsRowsLast) {
  const View x{0, 0, 8}, h{1, 0, 8}, out{2, 0, 8};
  const Norm norm{.in = x, .out = h, .weight = VectorId{0}, .bias = VectorId{1}}, other{.in = x, .out = h, .weight = VectorId{2}};
  const auto product = [&](View in, int matrix) { return Linear{.in = in, .out = out, .parts = {{MatrixId{matrix}}}}; };
  const auto before = [&](std::vector<Op> ops) {
    const Program p{.name = "p", .ops = std::move(ops)};
    const Program* const programs[] = {&p};
    return norms_before(programs, 2)[0];
  };
  const NormBefore first{VectorId{0}, VectorId{1}}, second{VectorId{2}, VectorId::none}, none;
  EXPECT_EQ(before({norm, product(h, 0)}), first);
  EXPECT_EQ(before({norm, GatedLinear{.in = h, .out = out, .gate = MatrixId{0}, .up = MatrixId{1}}}), first);
  EXPECT_EQ(before({norm, product(h, 1), product(h, 0)}), first) << "a product elsewhere leaves it";
  EXPECT_EQ(before({norm, other, product(h, 0)}), second);
  EXPECT_EQ(before({norm, product(h, 0), other, product(h, 0)}), second) << "layers that share a matrix";
  EXPECT_EQ(before({norm, Multiply{.a = h, .b = {}, .out = h, .scale = 2}, product(h, 0)}), none);
  EXPECT_EQ(before({norm, product({1, 0, 4}, 0)}), none) << "some of its columns";
  Norm added = norm, heads = norm;
  added.add = x;
  heads.group = 4;
  EXPECT_EQ(before({added, product(h, 0)}), none);
  EXPECT_EQ(before({heads, product(h, 0)}), none);
  EXPECT_EQ(before({product(x, 0)}), none);
}

}  // namespace
}  // namespace pumice::cpu::narrow_test
