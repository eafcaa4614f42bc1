// Programs that are cut around some of their operations (core/program_cut.h): the parts give the bits of the whole program.
#include "core/program_cut.h"

#include <gtest/gtest.h>

#include "cases.h"
#include "cpu/cpu_backend.h"
#include "reference/op_cases.h"

namespace pumice::program_cut_test {
namespace {

constexpr std::int32_t kWidth = 64, kExperts = 4, kChosen = 2, kTaps = 3, kRows = 11;

enum Slot : std::int32_t { kIn, kHidden, kNormed, kMixed, kRoute, kOut };

// Two layers with a convolution, a network beside the experts, and a state each. The hidden rows and the input of the experts are needed
// behind the first cut, and the input slot is used until the end.
Program layers() {
  Program p{.name = "layers",
            .slots = {{Rows::tokens, kWidth},
                      {Rows::tokens, kWidth},
                      {Rows::tokens, kWidth},
                      {Rows::tokens, 2 * kWidth},
                      {Rows::tokens, 2 * kChosen},
                      {Rows::selected, kWidth}},
            .states = {{1, kTaps - 1, kWidth}, {1, kTaps - 1, kWidth}},
            .input = kIn,
            .output = kOut};
  const View in{kIn, 0, kWidth}, x{kHidden, 0, kWidth}, h{kNormed, 0, kWidth}, conv{kMixed, kWidth, kWidth}, mlp{kMixed, 0, kWidth};
  p.ops.push_back(Multiply{.a = in, .out = x, .scale = 0.5f});
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    p.ops.push_back(Norm{.in = x, .out = h, .weight = VectorId{0}});
    p.ops.push_back(Conv{.in = h, .out = conv, .taps = VectorId{1}, .width = kTaps, .state = StateId{layer}});
    p.ops.push_back(Linear{.in = conv, .out = x, .parts = {{MatrixId{0}}}, .residual = x});
    p.ops.push_back(Norm{.in = x, .out = h, .weight = VectorId{0}});
    p.ops.push_back(Linear{.in = h, .out = mlp, .parts = {{MatrixId{0}}}});
    p.ops.push_back(Route{.logits = {kNormed, 0, kExperts}, .out = {kRoute, 0, 2 * kChosen}, .chosen = kChosen});
    p.ops.push_back(Experts{
        .in = h, .route = {kRoute, 0, 2 * kChosen}, .out = x, .residual = x, .gate = MatrixId{1}, .up = MatrixId{2}, .down = MatrixId{3}});
    p.ops.push_back(Multiply{.a = x, .b = mlp, .out = x});
    p.ops.push_back(Multiply{.a = x, .b = in, .out = x});
  }
  p.ops.push_back(Select{.in = x, .out = {kOut, 0, kWidth}});
  return p;
}

Weights weights() {
  Weights w;
  w.matrices.push_back(cases::random_matrix("linear", Format::F32, kWidth, kWidth, 1));
  for (int m = 1; m < 4; ++m) {
    w.matrices.push_back(cases::random_matrix("experts", Format::F32, kWidth * kExperts, kWidth, std::uint64_t(m)));
    w.matrices.back().experts = kExperts;
  }
  w.vectors = {{"norm", cases::Random(7).normals(kWidth, 1.0f)}, {"taps", cases::Random(8).normals(kWidth * kTaps, 0.5f)}};
  return w;
}

bool is_experts(const Op& op) { return std::holds_alternative<Experts>(op); }

std::vector<float> run(const std::vector<ProgramPart>& parts, const std::vector<float>& in) {
  const auto backend = cpu::make_backend(2);
  const auto packed = backend->pack(weights(), {}, {}, Cancel());
  const std::vector<SavedState> saves = {{.rows = kRows, .state = 0}};
  const Segment segment{.first = 0, .rows = kRows, .saves = saves};
  const std::vector<std::int32_t> selected = {2, kRows - 1};
  std::vector<float> rows = in;
  for (const ProgramPart& part : parts) {
    const Program& p = part.program;
    const auto store = backend->make_caches(p, KvFormat::f32);
    store->reserve_states(1);
    const SlotShape& shape = p.slots[static_cast<std::size_t>(p.output)];
    std::vector<float> out((shape.rows == Rows::tokens ? kRows : selected.size()) * static_cast<std::size_t>(shape.width));
    backend->prepare(p, packed, Compute::float32)
        ->run(*backend->make_workspace(Crew::team), store.get(), {.rows = kRows, .segments = {&segment, 1}, .selected = selected},
              {rows, out}, Cancel());
    rows = std::move(out);
  }
  return rows;
}

TEST(ProgramCut, PartsGiveTheBitsOfTheWhole) {
  const Program whole = layers();
  const std::vector<ProgramPart> parts = cut_program(whole, shapes_of(weights()), is_experts);
  ASSERT_EQ(parts.size(), 5u);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].apart, i % 2 == 1);
    EXPECT_EQ(parts[i].program.states.size(), i == 0 || i == 2 ? 1u : 0u) << i;
  }
  const auto in = cases::Random(9).normals(kRows * kWidth, 1.0f);
  EXPECT_EQ(run(parts, in), run({{whole, false}}, in));
  // Every operation alone.
  bool odd = false;
  const auto alternate = cut_program(whole, shapes_of(weights()), [&](const Op&) { return odd = !odd; });
  EXPECT_GT(alternate.size(), 3u);
  EXPECT_EQ(run(alternate, in), run({{whole, false}}, in));
}

TEST(ProgramCut, OnlyWhatIsReadLaterCrosses) {
  const std::vector<ProgramPart> parts = cut_program(layers(), shapes_of(weights()), is_experts);
  const auto width = [](const Program& p, std::int32_t slot) { return p.slots[static_cast<std::size_t>(slot)].width; };
  // Before the experts: the input, hidden rows, normalised rows, the network's result and the route. Behind them: input, hidden rows,
  // result.
  EXPECT_EQ(width(parts[0].program, parts[0].program.output), 4 * kWidth + 2 * kChosen);
  EXPECT_EQ(width(parts[2].program, parts[2].program.input), 3 * kWidth);
}

TEST(ProgramCut, AProgramWithoutSuchOperationsIsOnePart) {
  const std::vector<ProgramPart> parts = cut_program(layers(), shapes_of(weights()), [](const Op&) { return false; });
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_FALSE(parts[0].apart);
  EXPECT_EQ(parts[0].program.ops.size(), layers().ops.size());
}

TEST(ProgramCut, WhatCannotBeCutIsRefused) {
  const auto message = [](const Program& p, const std::function<bool(const Op&)>& apart) {
    try {
      cut_program(p, shapes_of(weights()), apart);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported_model);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  Program behind = layers();
  behind.ops.push_back(Multiply{.a = {kOut, 0, kWidth}, .out = {kOut, 0, kWidth}, .scale = 2});
  const auto last = [&](const Op& op) { return std::holds_alternative<Multiply>(op) && std::get<Multiply>(op).scale == 2; };
  EXPECT_NE(message(behind, last).find("cannot be cut behind its layers"), std::string::npos);

  Program shared = layers();  // attention in the second part reads the keys and values that the first part stores
  shared.caches = {{1, kWidth, kWidth}};
  const View x{kHidden, 0, kWidth};
  const auto first_experts = std::ranges::find_if(shared.ops, is_experts);
  const auto attend = Attend{
      .q = x, .out = {kNormed, 0, kWidth}, .cache = CacheId{0}, .key_dim = kWidth, .value_dim = kWidth, .kv_heads = 1, .causal = true};
  shared.ops.insert(first_experts + 1, attend);
  shared.ops.insert(shared.ops.begin() + 1, Store{.k = x, .v = x, .cache = CacheId{0}});
  const std::string said = message(shared, is_experts);
  EXPECT_NE(said.find("two parts would need the same cache"), std::string::npos) << said;
}

}  // namespace
}  // namespace pumice::program_cut_test
