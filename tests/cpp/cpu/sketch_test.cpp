// Sketches of heads: the bounds must hold in the worst case, and Top must give the same words with a sketch as without.
#include "cpu/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "cases.h"
#include "core/top.h"
#include "cpu/all_kernels.h"
#include "cpu/cpu_backend.h"
#include "cpu/executor.h"

namespace pumice::cpu {
namespace {

using cases::Random;
using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Matrix head_of(Format format, std::int64_t cols, std::shared_ptr<const std::vector<std::uint8_t>> packed) {
  const std::int64_t bytes = row_bytes(format, cols);
  return {.name = "head",
          .format = format,
          .rows = static_cast<std::int64_t>(packed->size()) / bytes,
          .cols = cols,
          .read = [packed, bytes](std::int64_t first, std::int64_t count, std::uint8_t* out) {
            std::memcpy(out, packed->data() + first * bytes, static_cast<std::size_t>(count * bytes));
          }};
}
Matrix head_of(Format format, std::int64_t cols, const Floats& weights) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(format, static_cast<std::int64_t>(weights.size()))));
  pack(format, weights.data(), static_cast<std::int64_t>(weights.size()), packed.data());
  return head_of(format, cols, std::make_shared<const std::vector<std::uint8_t>>(std::move(packed)));
}

struct Head {
  explicit Head(Matrix matrix, std::int32_t k = 1, float scale = 1) : rows(static_cast<std::int32_t>(matrix.rows)) {
    const auto cols = static_cast<std::int32_t>(matrix.cols), columns = static_cast<std::int32_t>(top_width(k, kReported));
    weights.matrices.push_back(std::move(matrix));
    const Linear linear{.in = {0, 0, cols}, .out = {1, 0, rows}, .parts = {{MatrixId{0}}}, .precise = true, .scale = scale};
    whole = {.name = "head", .ops = {linear}, .slots = {{Rows::tokens, cols}, {Rows::tokens, rows}}, .input = 0, .output = 1};
    top = whole;
    top.slots.push_back({Rows::tokens, columns});
    top.ops.push_back(Top{.logits = linear.out, .out = {2, 0, columns}, .k = k, .reported = kReported});
    top.output = 2;
    team = std::make_shared<TeamHolder>(2);
    sketched = packed(top);
    plain = packed(whole);
  }
  std::shared_ptr<PackedWeights> packed(const Program& program) const {
    const Program* programs[] = {&program};
    return std::make_shared<PackedWeights>(weights, programs, team->get(), Progress(), Cancel());
  }
  Floats run(const Program& program, const std::shared_ptr<PackedWeights>& packed, const Floats& in, Batch batch, Compute compute) const {
    ScratchSpace space(Crew::team, 2);
    batch.rows = static_cast<std::int32_t>(in.size()) / program.slots[0].width;
    Floats out(static_cast<std::size_t>(batch.rows) *
               static_cast<std::size_t>(program.slots[static_cast<std::size_t>(program.output)].width));
    ProgramExecutable(program, packed, compute, team).run(space, nullptr, batch, {in, out}, Cancel());
    return out;
  }
  // Expects the same words from Top with and without the sketch.
  void expect_same(const char* what, const Floats& in, const Batch& batch = {}) const {
    SCOPED_TRACE(what);
    for (const Compute compute : {Compute::automatic, Compute::float32}) {
      const Floats with = run(top, sketched, in, batch, compute), without = run(top, plain, in, batch, compute);
      ASSERT_EQ(with.size(), without.size());
      const auto k = std::get<Top>(top.ops.back()).k, columns = static_cast<std::int32_t>(top_width(k, kReported));
      for (std::size_t row = 0; row < with.size(); row += static_cast<std::size_t>(columns)) {
        // If a logit is not finite, only the first words and the reported logits are valid.
        const bool finite = TopRow{std::span(without).subspan(row), k}.not_finite() == 0;
        const auto words = static_cast<std::size_t>(finite ? columns : 3);
        EXPECT_EQ(std::memcmp(with.data() + row, without.data() + row, words * sizeof(float)), 0) << "row " << row;
      }
    }
  }

  static constexpr std::int32_t kReported = 8;
  std::int32_t rows;
  Weights weights;
  Program whole, top;
  std::shared_ptr<TeamHolder> team;
  std::shared_ptr<PackedWeights> sketched, plain;
};

// The bounds of all rows of a head for some activations, in the kernels' own sums.
Floats bounds_of(const Kernels& kernels, const Head& head, const Floats& x) {
  const PackedMatrix& m = head.sketched->matrix(MatrixId{0});
  const std::int64_t cols = sketch_cols(m.cols), blocks = cols / kQuantBlock;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(cols));
  Floats scales(static_cast<std::size_t>(blocks)), scaled(scales.size()), bounds(static_cast<std::size_t>(m.rows));
  std::vector<std::int32_t> sums(2 * scales.size());
  const QuantRows rows{codes.data(), scales.data(), sums.data(), scaled.data(), 1, cols};
  EXPECT_TRUE(sketch_activations(kernels.rows, x.data(), m.cols, 0, rows));
  kernels.matrix[Format::Q5_0].product_int8(m.sketch, m.rows, cols, rows, 0, 1, bounds.data(), m.rows);
  return bounds;
}

void expect_bounds(const Head& head, const Floats& x) {
  const Floats bounds = bounds_of(kernels(), head, x);
  for (const Compute compute : {Compute::automatic, Compute::float32}) {
    const Floats logits = head.run(head.whole, head.plain, x, {}, compute);
    for (std::size_t i = 0; i < logits.size(); ++i) {  // a bound that is not a number is none: the logit is computed then
      ASSERT_FALSE(bounds[i] < logits[i]) << bounds[i] << " < " << logits[i] << ", id " << i << ", compute " << static_cast<int>(compute);
    }
  }
  for (const Kernels* each : all_kernels()) {
    const Floats theirs = bounds_of(*each, head, x);
    EXPECT_EQ(std::memcmp(theirs.data(), bounds.data(), bounds.size() * sizeof(float)), 0) << each->isa;
  }
}

constexpr Format kSketched[] = {Format::Q8_0, Format::F16, Format::BF16, Format::F32};

TEST(Sketch, BoundsHold) {
  for (const Format format : kSketched) {
    for (const std::int64_t cols : {32, 64, 640, 1056}) {
      SCOPED_TRACE(str(name(format), ", ", cols, " columns"));
      Random random(static_cast<std::uint64_t>(cols));
      Floats weights = random.normals(37 * cols, 0.02f);
      std::fill_n(weights.begin() + cols, cols, 0.0f);
      for (std::int64_t c = 0; c < cols; ++c) weights[static_cast<std::size_t>(2 * cols + c)] = c % 2 ? 1e-7f : -1e-7f;
      for (std::int64_t c = 0; c < cols; ++c) weights[static_cast<std::size_t>(3 * cols + c)] = c % 32 == 5 ? 1000.0f : 1e-3f;
      const Head head(head_of(format, cols, weights));
      for (const float scale : {1.0f, 1e-30f, 1e6f, 0.0f}) expect_bounds(head, random.normals(cols, scale));
      // Activations along what the sketch leaves out of a row: Cauchy and Schwarz then lose nothing.
      std::vector<std::uint8_t> group(static_cast<std::size_t>(sketch_group_bytes(cols)));
      Sketcher(head.sketched->matrix(MatrixId{0})).make(0, group.data());
      for (int lane = 0; lane < 16; ++lane) {
        Floats row(static_cast<std::size_t>(cols)), copy(static_cast<std::size_t>(sketch_cols(cols)));
        head.sketched->matrix(MatrixId{0}).unpack_row(lane, row.data());
        kernels().matrix[Format::Q5_0].unpack_row(group.data(), lane, sketch_cols(cols), copy.data());
        for (std::size_t c = 0; c < row.size(); ++c) copy[c] = row[c] - copy[c];
        copy.resize(row.size());
        expect_bounds(head, copy);
      }
    }
  }
}

// Codes that pack() never writes.
TEST(Sketch, BoundsHoldForExtremeCodes) {
  constexpr std::int64_t kCols = 64;
  Random random(3);
  auto packed = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(64 * row_bytes(Format::Q8_0, kCols)));
  for (std::size_t at = 0; at < packed->size(); at += 34) {
    const std::uint16_t scale = f32_to_f16(at % 3 == 0 ? -0.5f : at % 7 == 0 ? 65504.0f : 0.01f);
    std::memcpy(packed->data() + at, &scale, sizeof scale);
    for (std::size_t i = 2; i < 34; ++i) (*packed)[at + i] = random.below(4) == 0 ? 0x80 : static_cast<std::uint8_t>(random.bits());
  }
  const Head head(head_of(Format::Q8_0, kCols, packed));
  for (int i = 0; i < 8; ++i) expect_bounds(head, random.normals(kCols));
}

struct Lists {
  std::vector<std::int32_t> reported, reported_first, allowed_first, ranked;
  std::vector<std::uint32_t> allowed;
  Batch batch() const {
    return {.reported = reported, .reported_first = reported_first, .ranked = ranked, .allowed = allowed, .allowed_first = allowed_first};
  }
};

TEST(Sketch, TopIsTheSame) {
  constexpr std::int64_t kCols = 64;
  for (const auto& [format, rows] : {std::pair{Format::Q8_0, 4 * 65536 + 5}, std::pair{Format::F16, 16 * 4096 + 5}}) {
    SCOPED_TRACE(name(format));
    Random random(7);
    Floats weights = random.normals(rows * kCols, 0.1f);
    // Rows that are equal, so that ids tie at every rank, and rows that differ in one weight.
    for (int i = 1; i < 40; ++i) std::copy_n(weights.begin(), kCols, weights.begin() + rows / 41 * i * kCols);
    weights[static_cast<std::size_t>(rows / 41 * 7 * kCols)] *= 1.01f;
    const Head one(head_of(format, kCols, weights)), four(head_of(format, kCols, weights), 4),
        scaled(head_of(format, kCols, weights), 2, 0.37f);
    EXPECT_EQ(one.sketched->bytes() - one.plain->bytes(), sketch_bytes(shape_of(one.weights.matrices[0])));
    Floats along(weights.begin(), weights.begin() + kCols);  // the equal rows have the largest logits
    for (const Head* head : {&one, &four, &scaled}) {
      for (int i = 0; i < 4; ++i) head->expect_same("random", random.normals(kCols));
      head->expect_same("ties", along);
      head->expect_same("all equal", Floats(kCols, 0.0f));
      head->expect_same("two rows", random.normals(2 * kCols));
      head->expect_same("many rows", random.normals(9 * kCols));
      head->expect_same("too large for a bound", random.normals(kCols, 1e20f));
      Floats bad = random.normals(kCols);
      bad[3] = kInfinity;
      head->expect_same("infinite", bad);
      bad[3] = std::nanf("");
      head->expect_same("not a number", bad);
      Floats both = random.normals(kCols);
      both.insert(both.end(), bad.begin(), bad.end());
      head->expect_same("one of two rows is not a number", both);

      const std::size_t words = mask_words(rows);
      Lists lists{.reported_first = {0, 0}, .allowed_first = {0}, .allowed = std::vector<std::uint32_t>(words)};
      head->expect_same("none allowed", along, lists.batch());
      lists.allowed[words / 2] = 1u << 7;
      head->expect_same("one allowed", along, lists.batch());
      for (std::uint32_t& word : lists.allowed) word = static_cast<std::uint32_t>(random.bits());
      head->expect_same("half allowed", along, lists.batch());
      lists.reported = {0, 3, rows / 41, rows - 1};
      lists.reported_first = {0, 4};
      head->expect_same("reported", along, lists.batch());
      lists.ranked = {1};
      head->expect_same("the largest one", along, lists.batch());
    }
  }
}

// Groups whose bounds are too low are not read: their weights may be anything.
TEST(Sketch, WhatCannotBeAmongTheLargestIsNotRead) {
  constexpr std::int64_t kCols = 64, kRows = 65536;
  Random random(9);
  Floats weights = random.normals(kRows * kCols, 0.001f);
  const Floats x = random.normals(kCols);
  std::copy(x.begin(), x.end(), weights.begin() + 4321 * kCols);
  const Head head(head_of(Format::Q8_0, kCols, weights));
  const Floats expected = head.run(head.top, head.sketched, x, {}, Compute::automatic);
  EXPECT_EQ((TopRow{expected, 1}.id(0)), 4321);
  const PackedMatrix& m = head.sketched->matrix(MatrixId{0});
  // SeedsStep also reads the groups of the next largest bounds. So groups are changed whose bounds are far below those.
  std::int64_t changed = 0;
  const Floats bounds = bounds_of(kernels(), head, x);
  for (std::int64_t g = 0; g < kRows / kGroupRows; ++g) {
    if (*std::max_element(bounds.begin() + g * kGroupRows, bounds.begin() + (g + 1) * kGroupRows) > 0.02f) continue;
    std::memset(m.data + g * m.group_bytes, 0x77, static_cast<std::size_t>(m.group_bytes));
    ++changed;
  }
  EXPECT_GT(changed, kRows / kGroupRows / 4);
  EXPECT_EQ(
      std::memcmp(head.run(head.top, head.sketched, x, {}, Compute::automatic).data(), expected.data(), expected.size() * sizeof(float)),
      0);
}

TEST(Sketch, IsMadeOnlyWhereItCanHelp) {
  const auto shape = [](Format format, std::int64_t rows, std::int64_t cols) { return MatrixShape{"head", format, rows, cols}; };
  const std::uint64_t gemma = 247'000'000, smollm = 97'000'000;
  EXPECT_EQ(sketch_ranks(shape(Format::Q8_0, 262144, 640), gemma), 4);
  EXPECT_EQ(sketch_ranks(shape(Format::Q8_0, 262144, 640), 10 * gemma), 0);  // the head is a small part of the model
  EXPECT_EQ(sketch_ranks(shape(Format::Q8_0, 49152, 576), smollm), 0);       // too few ids
  EXPECT_EQ(sketch_ranks(shape(Format::F16, 49152, 576), 2 * smollm), 3);
  EXPECT_EQ(sketch_ranks(shape(Format::F16, 49152, 576), 3 * smollm), 0);
  EXPECT_EQ(sketch_ranks(shape(Format::Q6_K, 262144, 768), gemma), 0);
  EXPECT_EQ(sketch_ranks(shape(Format::F16, 262144, 100), 1), 0);  // no whole blocks

  const Head head(head_of(Format::F16, 32, Floats(64 * 32, 1.0f)));
  const WeightShapes shapes = pumice::shapes_of(head.weights);
  EXPECT_EQ(sketched_by(head.top, 0, shapes), MatrixId{0});
  EXPECT_EQ(sketched_by(head.whole, 0, shapes), MatrixId::none);
  const auto without = [&](auto&& change) {
    Program program = head.top;
    change(std::get<Linear>(program.ops[0]));
    return sketched_by(program, 0, shapes);
  };
  EXPECT_EQ(without([](Linear& l) { l.softcap = 30; }), MatrixId::none);
  EXPECT_EQ(without([](Linear& l) { l.scale = -1; }), MatrixId::none);
  EXPECT_EQ(without([](Linear& l) { l.precise = false; }), MatrixId::none);
  EXPECT_EQ(without([](Linear& l) { l.activation = Activation::tanh; }), MatrixId::none);

  const auto backend = make_backend(1);
  const auto weights_of = [&](const Program& program) { return backend->cost(program, shapes, KvFormat::f16, 1).weights; };
  EXPECT_EQ(weights_of(head.top) - weights_of(head.whole), sketch_bytes(shapes.matrices[0]));
}

}  // namespace
}  // namespace pumice::cpu
