// Mixtures of experts where the shared cases do not reach: more rows than one block, matrices of experts in several pieces and in pieces of
// one expert, routes that change between runs of one recording, and routers whose logits are not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cases.h"
#include "core/error.h"
#include "core/program_check.h"
#include "reference/op_cases.h"
#include "reference/reference_backend.h"
#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/lowering.h"
#include "vulkan/plan.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan {
namespace {

constexpr std::int32_t kCols = 64, kWidth = 96, kExperts = 6, kChosen = 2, kIn = kCols + kExperts;
constexpr double kLimit = 1e-9;

// Returns a device that binds at most `range` bytes at once, or as much as it can if that is 0.
std::shared_ptr<Backend> device_of(std::uint64_t range = 0) {
  PhysicalDevice device = physical();
  if (range > 0) device.limits.range = range;
  return make_backend(Device::open(device), 0);
}

// A router, the experts of its choices, and a product of heads. The result of the experts, and each head's result, are columns of the
// output.
Program mixture() {
  constexpr std::int32_t kHeads = kCols / 8;
  Program p{
      .name = "mixture", .slots = {{Rows::tokens, kIn}, {Rows::tokens, 2 * kChosen}, {Rows::tokens, 2 * kCols}}, .input = 0, .output = 2};
  p.ops = {Route{.logits = {0, kCols, kExperts}, .out = {1, 0, 2 * kChosen}, .chosen = kChosen},
           Experts{.in = {0, 0, kCols},
                   .route = {1, 0, 2 * kChosen},
                   .out = {2, 0, kCols},
                   .gate = MatrixId{0},
                   .up = MatrixId{1},
                   .down = MatrixId{2},
                   .gate_bias = VectorId{0}},
           HeadLinear{.in = {0, 0, kCols}, .out = {2, kCols, kCols}, .in_step = 0, .out_step = kCols / kHeads, .weight = MatrixId{3}}};
  return p;
}

Weights weights() {
  const auto stack = [](std::string name, Format format, std::int64_t rows, std::int64_t cols, std::int32_t count, std::uint64_t seed) {
    Matrix m = cases::random_matrix(std::move(name), format, rows * count, cols, seed);
    m.experts = count;
    return m;
  };
  // The gate's rows are longer than those of up, so the two are cut into pieces at different rows.
  return {.matrices = {stack("gate", Format::F32, kWidth, kCols, kExperts, 1), stack("up", Format::F16, kWidth, kCols, kExperts, 2),
                       stack("down", Format::F32, kCols, kWidth, kExperts, 3), stack("heads", Format::F32, 8, kCols, kCols / 8, 4)},
          .vectors = {{"gate bias", cases::Random(5).normals(kExperts * kWidth, 0.5f)}}};
}

std::vector<float> input(std::int32_t rows, std::uint64_t seed) { return cases::Random(seed).normals(std::size_t(rows) * kIn, 1.0f); }

class Mixture {
 public:
  explicit Mixture(Backend& backend)
      : weights_(backend.pack(weights(), {}, {}, Cancel{})),
        program_(backend.prepare(mixture(), weights_, Compute::float32)),
        workspace_(backend.make_workspace(Crew::team)) {}
  std::vector<float> operator()(const std::vector<float>& in) {
    const auto rows = static_cast<std::int32_t>(in.size() / kIn);
    std::vector<float> out(static_cast<std::size_t>(rows) * 2 * kCols);
    program_->run(*workspace_, nullptr, {.rows = rows}, {in, out}, Cancel{});
    return out;
  }

 private:
  std::shared_ptr<const DeviceWeights> weights_;
  std::shared_ptr<const Executable> program_;
  std::unique_ptr<Workspace> workspace_;
};

std::vector<float> truth(const std::vector<float>& in) {
  reference::ReferenceBackend reference;
  return Mixture(reference)(in);
}

// A matrix of 96 x 64 floats has 24 KiB, so a binding of 16 KiB holds a part of one expert's gate, and one of 64 KiB holds two experts.
TEST(Mixture, MatricesLieInSeveralPieces) {
  for (const std::uint64_t range : {16384, 65536}) {
    const auto device = device_of(range);
    Mixture ours(*device);
    for (const std::int32_t rows : {1, 3, 40}) {
      const auto in = input(rows, 20);
      EXPECT_LT(cases::nmse(ours(in), truth(in), 0), kLimit) << range << " bytes, " << rows << " rows";
    }
  }
}

TEST(Mixture, RowsBeyondABlockRunInSeveralBlocks) {
  const auto device = device_of();
  Mixture ours(*device);
  for (const std::int32_t rows : {2048, 2049, 2200}) {
    const auto in = input(rows, 21);
    EXPECT_LT(cases::nmse(ours(in), truth(in), 0), kLimit) << rows << " rows";
  }
}

// The second run of a shape replays the recording of the first.
TEST(Mixture, ARecordingFollowsOtherRoutes) {
  const auto device = device_of();
  Mixture ours(*device);
  for (const std::int32_t rows : {2, 50}) {
    for (std::uint64_t seed = 30; seed < 33; ++seed) {
      const auto in = input(rows, seed);
      EXPECT_LT(cases::nmse(ours(in), truth(in), 0), kLimit) << rows << " rows, seed " << seed;
    }
  }
}

TEST(Mixture, ItsScratchMemoryIsCounted) {
  const auto device = device_of();
  const auto scratch = [&](std::int64_t rows) { return device->cost(mixture(), shapes_of(weights()), KvFormat::f32, rows).scratch; };
  // What a row costs in a batch of one block, and in batches of several blocks, which share the memory between the products. There, a row
  // has a row of kWidth columns and a row of kCols columns for each choice, padded to multiples of 64 columns, and 28 bytes in the list.
  const std::uint64_t in_block = (scratch(1024) - scratch(512)) / 512, beyond = (scratch(8192) - scratch(4096)) / 4096;
  constexpr std::uint64_t kPerRow = kChosen * (128 + 64) * 4 + 28;
  EXPECT_EQ(in_block - beyond, kPerRow);
}

TEST(Mixture, ExpertsWhoseRowsDoNotFitABindingAreRefused) {
  const auto device = device_of(512);
  try {
    (void)device->cost(mixture(), shapes_of(weights()), KvFormat::f32, 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported_model);
    EXPECT_NE(std::string(error.what()).find("Experts needs 1024 bytes at once for 2 of 6 experts"), std::string::npos) << error.what();
  }
}

// The products of a mixture share one list of pairs, so their tiles must have as many rows, also on cooperative matrices, where the tile of
// a gated product may be smaller than that of another one.
TEST(Mixture, ProductsOfOneListHaveTilesOfEqualRows) {
  PhysicalDevice device = physical();
  device.cooperative = {16, 16, 16, 32};
  const auto opened = Device::open(device);  // opened without the feature, because the test makes no pipelines
  const GpuWeights shapes(opened, weights());
  for (const bool cooperative : {false, true}) {
    const GpuPlan plan = make_plan(mixture(), shapes.shapes(), {.cooperative_matrix = cooperative}, device);
    std::map<std::string, std::set<std::uint32_t>> gated, plain;  // by shader: the rows of listed tiles
    for (const PipelineKey& key : pipelines_of(plan, shapes, device, KvFormat::f16)) {
      if (key.constants.size() <= params::kLinearRows || key.constants[params::kLinearRows] != params::kRowsListed) continue;
      (key.constants[params::kLinearGated] != 0 ? gated : plain)[key.shader].insert(key.constants[params::kLinearTokens]);
    }
    EXPECT_EQ(gated, plain);
    EXPECT_EQ(gated.count(cooperative ? "gemm_coopmat" : "gemm"), 1u);
    EXPECT_EQ(gated.count(cooperative ? "gemm" : "gemm_coopmat"), 0u);
  }
}

TEST(Mixture, LogitsThatAreNotFiniteGiveWeightsThatAreNaN) {
  const auto device = device_of();
  constexpr std::int32_t kLogits = 70, kBest = 3;
  for (const RouteScore score : {RouteScore::softmax, RouteScore::sigmoid}) {
    Program p{.name = "route", .slots = {{Rows::tokens, kLogits}, {Rows::tokens, 2 * kBest}}, .input = 0, .output = 1};
    p.ops = {Route{.logits = {0, 0, kLogits}, .out = {1, 0, 2 * kBest}, .chosen = kBest, .score = score}};
    const auto program = device->prepare(p, device->pack({}, {}, {}, Cancel{}), Compute::float32);
    const float infinity = std::numeric_limits<float>::infinity();
    const float bad[] = {std::nanf(""), infinity, -infinity};
    std::vector<float> in = cases::Random(6).normals(4 * kLogits, 1.0f), out(4 * 2 * kBest);
    for (std::size_t row = 0; row < 3; ++row) in[row * kLogits + 69] = bad[row];
    program->run(*device->make_workspace(Crew::team), nullptr, {.rows = 4}, {in, out}, Cancel{});
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t i = 0; i < kBest; ++i) {
        const float index = out[row * 2 * kBest + i], weight = out[row * 2 * kBest + kBest + i];
        EXPECT_EQ(std::isnan(weight), row < 3) << "row " << row;
        if (row < 3) {
          EXPECT_EQ(index, static_cast<float>(i));
        }
        EXPECT_TRUE(index >= 0 && index < kLogits);
      }
    }
  }
}

}  // namespace
}  // namespace pumice::vulkan
