// A variant of a shader is compared with the baseline before it is used. It must be switched off if the results differ too much. lavapipe
// has integer dot products (slow ones), but no cooperative matrices.
#include "vulkan/variants.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "reference/op_cases.h"
#include "vulkan/chosen_device.h"
#include "vulkan/device.h"
#include "vulkan/lowering.h"
#include "vulkan/shaders.h"
#include "vulkan/vulkan_backend.h"

namespace pumice::vulkan::variants_test {
namespace {

PhysicalDevice with_integer_dot() {
  PhysicalDevice device = physical();
  device.integer_dot_used = device.integer_dot;  // as PUMICE_VULKAN_ENABLE=integer_dot does
  device.cooperative_matrix = false;
  return device;
}

struct Broken {
  explicit Broken(const char* variant) { ::setenv("PUMICE_VULKAN_BREAK", variant, 1); }
  ~Broken() { ::unsetenv("PUMICE_VULKAN_BREAK"); }
};

constexpr std::int32_t kCols = 512, kOutputs = 40, kRows = 33;
Program product() {
  Program p{.name = "product", .slots = {{Rows::tokens, kCols}, {Rows::tokens, kOutputs}}, .input = 0, .output = 1};
  p.ops.push_back(Linear{{0, 0, kCols}, {1, 0, kOutputs}, {{MatrixId{0}}}});
  return p;
}
Weights matrix() {
  Weights w;
  w.matrices.push_back(cases::random_matrix("weights", Format::Q4_K, kOutputs, kCols, 7));
  return w;
}

std::vector<float> run(Backend& backend, Compute compute) {
  std::vector<float> in(std::size_t{kRows} * kCols), out(std::size_t{kRows} * kOutputs);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 255) - 127) / 64;
  const auto program = backend.prepare(product(), backend.pack(matrix(), {}, {}, Cancel{}), compute);
  program->run(*backend.make_workspace(Crew::team), nullptr, {.rows = kRows}, {in, out}, Cancel{});
  return out;
}

TEST(Variants, ThatPassAreUsed) {
  const PhysicalDevice device = with_integer_dot();
  ASSERT_TRUE(device.integer_dot || device.type != DeviceType::software) << "without it this test sees nothing";
  const auto backend = make_backend(Device::open(device), 0);
  const auto baseline = run(*backend, Compute::float32), ours = run(*backend, Compute::automatic);
  EXPECT_EQ(backend->info().notes, std::vector<std::string>{});
  if (!device.integer_dot) {
    EXPECT_EQ(ours, baseline);
    return;
  }
  EXPECT_NE(ours, baseline);  // activations are rounded to 8 bits
  EXPECT_LT(cases::nmse(ours, baseline, 0), 5e-4);
}

TEST(Variants, ThatDifferAreOffByNameAndTheBaselineIsUsed) {
  const PhysicalDevice device = with_integer_dot();
  ASSERT_TRUE(device.integer_dot || device.type != DeviceType::software);
  if (!device.integer_dot) return;
  const auto backend = make_backend(Device::open(device), 0);
  std::vector<float> ours;
  {
    const Broken broken("integer_dot");
    ours = run(*backend, Compute::automatic);
  }
  EXPECT_EQ(ours, run(*backend, Compute::float32));
  const std::vector<std::string> notes = backend->info().notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("integer_dot is off on " + device.name + ": its product of 1 row and Q4_K weights differs"), std::string::npos)
      << notes[0];
  EXPECT_EQ(run(*backend, Compute::automatic), ours);  // the variant stays off, without a second note
  EXPECT_EQ(backend->info().notes.size(), 1u);
}

TEST(Variants, ThatDoNotCompileAreOff) {
  const PhysicalDevice device = with_integer_dot();
  if (!device.integer_dot) return;
  const auto opened = Device::open(device);
  // In each round another Vulkan call fails. If it is a call of the baseline, there must be an error. If it is the variant's own call, the
  // variant must be switched off.
  std::vector<std::string> notes;
  int failed = 0;
  for (int call = 0; notes.empty() && call < 1000; ++call) {
    VariantTests tests(*opened);
    faults().arm(call, 1, VK_ERROR_UNKNOWN);
    try {
      tests.passed({.integer_dot = true}, Cancel{});  // failing calls of the pipeline cache have no effect
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device) << error.what();
      ++failed;
    }
    faults().disarm();
    notes = tests.notes();
  }
  EXPECT_GT(failed, 0);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].rfind("integer_dot is off on " + device.name, 0), 0u) << notes[0];
  EXPECT_TRUE(VariantTests(*opened).passed({.integer_dot = true}, Cancel{}).integer_dot);  // the device still works
}

// A device with cooperative matrices must use them for products with enough rows for tiles, but not for precise products, and never with
// Compute::float32.
TEST(Variants, CooperativeProductsAreForManyRows) {
  PhysicalDevice device = with_integer_dot();
  device.cooperative = {16, 16, 16, 32};
  const auto opened = Device::open(device);  // opened without the feature, because the test makes no pipelines
  const GpuWeights weights(opened, matrix(), {}, {}, Cancel{});
  const auto pipelines = [&](const Variants& variants, std::int32_t precise) {
    Program program = product();
    std::get<Linear>(program.ops[0]).precise = precise != 0;
    const GpuPlan plan = make_plan(std::move(program), weights.shapes(), variants, device);
    return pipelines_of(plan, weights, device, KvFormat::f16);
  };
  std::vector<PipelineKey> cooperative;
  for (const PipelineKey& key : pipelines({.integer_dot = true, .cooperative_matrix = true}, 0)) {
    if (key.shader == "gemm_coopmat") cooperative.push_back(key);
    EXPECT_NE(key.shader, "gemm_i8");
    EXPECT_NE(key.shader, "gemm");
  }
  ASSERT_EQ(cooperative.size(), 1u);
  EXPECT_EQ(cooperative[0].subgroup, 32u);
  const auto& constants = cooperative[0].constants;
  ASSERT_EQ(constants.size(), params::kLinearCoopSubgroup + 1);
  EXPECT_EQ(constants[params::kLinearCoopSubgroup], 32u);
  const std::uint32_t subgroups = constants[params::kSpecLanes] / 32, tokens = constants[params::kLinearTokens],
                      outputs = constants[params::kLinearOutputs];
  EXPECT_TRUE(subgroups == 1 || subgroups % 2 == 0);
  EXPECT_LE(constants[params::kSpecLanes], device.limits.invocations);
  EXPECT_LE((tokens + outputs) * 80 + 128 + subgroups * 4 * 256, device.limits.shared);
  EXPECT_EQ(tokens / (subgroups > 1 ? subgroups / 2 : 1) % 16, 0u);
  EXPECT_EQ(outputs / (subgroups > 1 ? 2 : 1) % 32, 0u);

  for (const PipelineKey& key : pipelines({.integer_dot = true, .cooperative_matrix = true}, 1))
    EXPECT_TRUE(key.shader == "matvec" || key.shader == "gemm") << key.shader;
  EXPECT_FALSE(offered(device, Compute::float32).cooperative_matrix || offered(device, Compute::float32).integer_dot);
}

}  // namespace
}  // namespace pumice::vulkan::variants_test
