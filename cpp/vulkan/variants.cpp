#include "vulkan/variants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "vulkan/executor.h"

namespace pumice::vulkan {
namespace {

// A product that the self-test computes. kOutputs and the numbers of rows are odd, so that some tiles are only partly filled. The formats
// are the most frequent ones in model files, so that models can use the pipelines that the test compiles.
struct TestProduct {
  Format format;
  std::int64_t cols;
};
constexpr TestProduct kTestProducts[] = {{Format::Q4_K, 512}, {Format::Q8_0, 96}};
constexpr std::int32_t kOutputs = 77;
constexpr std::int32_t kFew = 1, kMany = 37;  // numbers of rows, for the pipelines of decoding (kFew) and of prefill (kMany)

// Returns the maximum relative squared error that a variant may have. It is well above the expected error. integer_dot rounds activations
// to 8 bits, which causes an error of 1.5e-5 for uniformly distributed numbers. cooperative_matrix rounds activations and weights to 11
// bits, which causes an error of 2e-7.
double limit(Variant variant) { return variant == Variant::integer_dot ? 1e-4 : 1e-5; }

Variants only(Variant variant) {
  return {.integer_dot = variant == Variant::integer_dot, .cooperative_matrix = variant == Variant::cooperative_matrix};
}

class Random {  // a linear congruential generator from Knuth, The Art of Computer Programming 2, 3.3.4, table 1
 public:
  std::uint32_t bits() { return (state_ = state_ * 1664525 + 1013904223) >> 8; }
  float uniform() { return static_cast<float>(bits()) / (1 << 23) - 1; }  // in [-1, 1)

 private:
  std::uint32_t state_ = 1;
};

// random_rows() returns rows of weights with random codes. In every fifth row, for which is_subnormal() is true, the scales are subnormal
// f16 numbers. Some devices treat these as zero, and the test must find this.
bool is_subnormal(std::int64_t row) { return row % 5 == 4; }
std::vector<std::uint8_t> random_rows(const TestProduct& p) {
  Random random;
  const std::int64_t stride = row_bytes(p.format, p.cols), block = info(p.format).block_bytes;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kOutputs * stride));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.bits());
  for (std::int64_t at = 0; at < kOutputs * stride; at += block) {
    const std::uint16_t scale = is_subnormal(at / stride) ? 37 : f32_to_f16(5e-4f);  // the bits 37 are the subnormal f16 number 37 * 2^-24
    std::memcpy(bytes.data() + at, &scale, sizeof scale);
    if (p.format == Format::Q4_K) std::memcpy(bytes.data() + at + sizeof scale, &scale, sizeof scale);  // the scale of the minima
  }
  return bytes;
}

// Computes the test's product with `rows` rows of random activations and with the given variants. Returns the result.
std::vector<float> multiply(const std::shared_ptr<Device>& device, const std::shared_ptr<const GpuWeights>& weights, const TestProduct& p,
                            const Variants& variants, std::int32_t rows, const Cancel& cancel) {
  Program program{
      .name = "self-test", .slots = {{Rows::tokens, static_cast<std::int32_t>(p.cols)}, {Rows::tokens, kOutputs}}, .input = 0, .output = 1};
  program.ops.push_back(Linear{{0, 0, static_cast<std::int32_t>(p.cols)}, {1, 0, kOutputs}, {{MatrixId{0}}}});
  const GpuExecutable executable(device, std::move(program), weights, variants, cancel);
  Random random;
  std::vector<float> in(static_cast<std::size_t>(rows * p.cols)), out(static_cast<std::size_t>(rows * kOutputs));
  for (float& x : in) x = random.uniform();
  GpuWorkspace workspace(device);
  executable.run(workspace, nullptr, {.rows = rows}, {in, out}, cancel);
  return out;
}

// Returns the relative squared error of `ours`. The outputs of subnormal rows have very small values, so they and the other outputs are
// measured separately, and the larger error is returned.
double error(const std::vector<float>& ours, const std::vector<float>& truth) {
  double difference[2] = {}, size[2] = {};
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const int group = is_subnormal(static_cast<std::int64_t>(i) % kOutputs);
    difference[group] += std::pow(double{ours[i]} - truth[i], 2);
    size[group] += std::pow(double{truth[i]}, 2);
  }
  const auto relative = [&](int group) { return difference[group] == 0 ? 0 : difference[group] / size[group]; };
  return relative(0) > relative(1) || std::isnan(relative(0)) ? relative(0) : relative(1);
}

// Tests a variant. Returns "" if it works, else a text that says how it fails. Throws errors that the variant did not cause, such as out of
// memory, device lost or cancelled.
std::string failure(const std::shared_ptr<Device>& device, Variant variant, const Cancel& cancel) {
  for (const TestProduct& p : kTestProducts) {
    const std::vector<std::uint8_t> bytes = random_rows(p);
    Weights host;
    host.matrices.push_back({"self-test", p.format, kOutputs, p.cols, [&](std::int64_t first, std::int64_t count, std::uint8_t* out) {
                               const std::int64_t stride = row_bytes(p.format, p.cols);
                               std::memcpy(out, bytes.data() + first * stride, static_cast<std::size_t>(count * stride));
                             }});
    const auto weights = std::make_shared<const GpuWeights>(device, host, std::vector<bool>{}, Progress(), cancel);
    for (const std::int32_t rows : {kFew, kMany}) {
      const std::vector<float> truth = multiply(device, weights, p, {}, rows, cancel);
      std::vector<float> ours;
      try {
        ours = multiply(device, weights, p, only(variant), rows, cancel);
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::device) throw;
        return e.what();
      }
      if (listed_in("PUMICE_VULKAN_BREAK", name(variant))) ours[ours.size() / 2] = 1 - ours[ours.size() / 2];
      const double off = error(ours, truth);
      if (!(off <= limit(variant))) {
        return str("its product of ", rows, rows == 1 ? " row" : " rows", " and ", info(p.format).name,
                   " weights differs from the baseline's (", "relative squared error ", off, ", allowed ", limit(variant), ")");
      }
    }
  }
  return {};
}

}  // namespace

std::string_view name(Variant variant) { return variant == Variant::integer_dot ? "integer_dot" : "cooperative_matrix"; }

bool VariantTests::works(Variant variant, const Cancel& cancel) {
  const std::lock_guard lock(testing_);
  State& state = states_[static_cast<std::size_t>(variant)];
  if (state == State::untested) {
    const std::string why = failure(device_.shared_from_this(), variant, cancel);
    state = why.empty() ? State::works : State::off;
    if (!why.empty()) {
      const std::lock_guard noting(mutex_);
      notes_.push_back(
          str(name(variant), " is off on ", device_.physical().name, ": ", why, ". Results are right without it, products slower"));
    }
  }
  return state == State::works;
}

Variants VariantTests::passed(const Variants& wanted, const Cancel& cancel) {
  return {.integer_dot = wanted.integer_dot && works(Variant::integer_dot, cancel),
          .cooperative_matrix = wanted.cooperative_matrix && works(Variant::cooperative_matrix, cancel)};
}

std::vector<std::string> VariantTests::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

}  // namespace pumice::vulkan
