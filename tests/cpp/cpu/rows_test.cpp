// Compares every row kernel with a plain reference in double precision, over odd sizes. All instruction sets must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/ops.h"
#include "cpu/all_kernels.h"

namespace pumice::cpu::rows_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Floats = std::vector<float>;

Floats random(std::size_t n, std::uint32_t seed, float spread = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Floats out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

std::vector<int> sizes() {
  std::vector<int> out;
  for (int n = 1; n <= 70; ++n) out.push_back(n);
  for (int n : {127, 128, 129, 384, 640, 1536, 2049}) out.push_back(n);
  return out;
}

// Compares bytes, so that NaN equals itself and 0 differs from -0.
void expect_same_bits(const Floats& a, const Floats& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0) << what << ": element " << i << ": " << a[i] << " and " << b[i];
  }
}

// Runs a kernel on every instruction set, checks that all give the same bits, and returns the result.
Floats on_all(const std::string& what, const std::function<Floats(const RowKernels&)>& run) {
  const auto all = native_kernels();
  Floats first = run(all.front()->rows);
  for (const Kernels* kernels : all) expect_same_bits(first, run(kernels->rows), what + " on " + kernels->isa);
  return first;
}

constexpr double kAlphaP = 0.75, kAlphaN = 1.25;
double activation_of(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1.0 + std::exp(-x));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::tanh:
      return std::tanh(x);
    case Activation::relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::sigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::quick_gelu:
      return x / (1.0 + std::exp(-1.702 * x));
    case Activation::xielu:
      return x > 0 ? kAlphaP * x * x + 0.5 * x : kAlphaN * (std::expm1(std::min(x, -1e-6)) - x) + 0.5 * x;
    case Activation::softplus:
      return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  }
  return 0.0;
}
std::vector<Activation> every_activation() {
  std::vector<Activation> all;
  for (std::size_t a = 0; a < std::size(kActivations); ++a) all.push_back(static_cast<Activation>(a));
  return all;
}
Epilogue epilogue_with(Activation activation) { return {.activation = activation, .alpha_p = kAlphaP, .alpha_n = kAlphaN}; }

TEST(Rows, ActivationsAreAccurateEverywhere) {
  Floats x;
  for (int i = -400000; i <= 400000; ++i) x.push_back(static_cast<float>(i) * 5e-5f);
  for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) * 0.1f);
  for (float big : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-6f, -1e-6f, -1e-5f, -1e-3f, 1e4f, -1e4f, 1e18f}) x.push_back(big);
  for (Activation activation : every_activation()) {
    const auto name = "activation " + std::string(kActivations[static_cast<std::size_t>(activation)]);
    const Floats y = on_all(name, [&](const RowKernels& rows) {
      Floats out = x;
      rows.epilogue(out.data(), static_cast<std::int64_t>(x.size()), 1, static_cast<std::int64_t>(x.size()), epilogue_with(activation));
      return out;
    });
    double worst = 0.0, at = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double truth = activation_of(activation, x[i]);
      // Rounding the result may cost 6e-8 of it. Activations other than gelu may be off four times as much,
      // because silu and gelu_tanh divide.
      const double rounding = (activation == Activation::gelu ? 1.0 : 4.0) * 6e-8 * std::abs(truth);
      const double error = std::max(0.0, std::abs(y[i] - truth) - rounding);
      if (error > worst || !(error == error)) worst = error, at = x[i];
    }
    EXPECT_LE(worst, 1e-7) << name << " at " << at;
  }
}

TEST(Rows, ActivationsKeepNanAndLimits) {
  for (const Kernels* kernels : native_kernels()) {
    for (Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::tanh}) {
      Floats x = {kNan, kInf, -1e30f, 200.0f, -200.0f};
      kernels->rows.epilogue(x.data(), 5, 1, 5, epilogue_with(activation));
      EXPECT_TRUE(std::isnan(x[0]));
      EXPECT_EQ(x[1], activation == Activation::tanh ? 1.0f : kInf);
      EXPECT_NEAR(x[2], activation == Activation::tanh ? -1.0f : 0.0f, 1e-7);
      EXPECT_EQ(x[3], activation == Activation::tanh ? 1.0f : 200.0f);
      EXPECT_NEAR(x[4], activation == Activation::tanh ? -1.0f : 0.0f, 1e-7);
    }
    for (Activation activation :
         {Activation::relu2, Activation::sigmoid, Activation::quick_gelu, Activation::xielu, Activation::softplus}) {
      Floats x = {kNan, kInf, -kInf, 200.0f, -200.0f};
      kernels->rows.epilogue(x.data(), 5, 1, 5, epilogue_with(activation));
      const auto name = kActivations[static_cast<std::size_t>(activation)];
      EXPECT_TRUE(std::isnan(x[0])) << name;
      EXPECT_EQ(x[1], activation == Activation::sigmoid ? 1.0f : kInf) << name;
      const bool ends_at_zero = activation == Activation::relu2 || activation == Activation::sigmoid || activation == Activation::softplus;
      if (ends_at_zero) {
        EXPECT_EQ(x[2], 0.0f) << name;
      }
      for (int i : {3, 4}) EXPECT_FLOAT_EQ(x[i], static_cast<float>(activation_of(activation, i == 3 ? 200.0 : -200.0))) << name;
    }
    Floats x = {kNan, 1.0f};
    kernels->rows.epilogue(x.data(), 2, 1, 2, {.scale = 2.0f, .softcap = 3.0f});
    EXPECT_TRUE(std::isnan(x[0])) << "a soft cap must not hide a NaN";
  }
}

// A NaN in `step` or `beta` must reach the output of Scan, so that it is reported. The floor of dt must not hide it.
TEST(Rows, ScanGatesKeepNan) {
  for (const Kernels* kernels : native_kernels()) {
    for (const float floor : {0.0f, 0.5f}) {
      const Floats step = {kNan, 1.0f, 1.0f}, beta = {1.0f, kNan, 1.0f};
      Floats decay(3), gain(3);
      const ScanGates call{.step = step.data(),
                           .beta = beta.data(),
                           .step_stride = 1,
                           .beta_stride = 1,
                           .step_bias = 0.25f,
                           .rate = -0.5f,
                           .floor = floor,
                           .strength = 2.0f};
      kernels->rows.scan_gates(call, 3, decay.data(), gain.data());
      EXPECT_TRUE(std::isnan(decay[0]) && std::isnan(gain[1])) << kernels->isa << ", floor " << floor;
      EXPECT_NEAR(decay[2], std::exp(-0.5 * std::log1p(std::exp(1.25))), 1e-6);
      EXPECT_NEAR(gain[2], 2 / (1 + std::exp(-1.0)), 1e-6);
    }
  }
}

TEST(Rows, RmsNorm) {
  for (int n : sizes()) {
    for (int variant = 0; variant < 4; ++variant) {
      const Floats x = random(n, n, 3.0f), w = random(n, n + 1), add = random(n, n + 2);
      const bool adds = variant & 1, in_place = variant & 2;
      const Floats y = on_all("rms_norm", [&](const RowKernels& rows) {
        Floats out = in_place ? x : Floats(n, kNan);
        rows.rms_norm(in_place ? out.data() : x.data(), w.data(), adds ? add.data() : nullptr, 1e-5f, n, out.data());
        return out;
      });
      double squares = 0.0;
      for (float v : x) squares += double{v} * v;
      for (int i = 0; i < n; ++i) {
        const double norm = x[i] / std::sqrt(squares / n + 1e-5) * w[i];
        EXPECT_NEAR(y[i], norm + (adds ? add[i] : 0.0), 1e-6 * (1.0 + std::abs(norm))) << n << " " << i;
      }
    }
  }
}

TEST(Rows, LayerNorm) {
  for (int n : sizes()) {
    for (int variant = 0; variant < 4; ++variant) {
      Floats x = random(n, n, 3.0f);
      for (float& v : x) v += 5.0f;
      const Floats w = random(n, n + 1), bias = random(n, n + 2), add = random(n, n + 3);
      const bool adds = variant & 1, biased = variant & 2;
      const Floats y = on_all("layer_norm", [&](const RowKernels& rows) {
        Floats out = add;  // the kernel gets `out` as `add` too, which may alias
        rows.layer_norm(x.data(), w.data(), biased ? bias.data() : nullptr, adds ? out.data() : nullptr, 1e-5f, n, out.data());
        return out;
      });
      double mean = 0.0, squares = 0.0;
      for (float v : x) mean += v;
      mean /= n;
      for (float v : x) squares += (v - mean) * (v - mean);
      for (int i = 0; i < n; ++i) {
        const double norm = (x[i] - mean) / std::sqrt(squares / n + 1e-5) * w[i] + (biased ? bias[i] : 0.0);
        // With one element, x - mean is nothing but a rounding error, which the division by sqrt(eps) makes larger.
        EXPECT_NEAR(y[i], norm + (adds ? add[i] : 0.0), n < 3 ? 2e-3 : 4e-6 * (1.0 + std::abs(norm))) << n << " " << i;
      }
    }
  }
}

TEST(Rows, EpilogueTouchesItsTileOnly) {
  for (int cols : {1, 5, 16, 17, 48, 63}) {
    for (Activation activation : every_activation()) {
      for (int variant = 0; variant < 16; ++variant) {
        const int count = 3, stride = cols + 7, residual_stride = cols + 3;
        const Floats tile = random(count * stride, cols), bias = random(cols, 1), residual = random(count * residual_stride, 2);
        const bool biased = variant & 1, adds = variant & 2;
        const double scale = variant & 4 ? -0.75 : 1, cap = variant & 8 ? 1.5 : 0;
        Epilogue how = epilogue_with(activation);
        how.bias = biased ? bias.data() : nullptr;
        how.residual = adds ? residual.data() : nullptr;
        how.residual_stride = residual_stride;
        how.scale = static_cast<float>(scale);
        how.softcap = static_cast<float>(cap);
        const Floats y = on_all("epilogue", [&](const RowKernels& rows) {
          Floats out = tile;
          rows.epilogue(out.data(), stride, count, cols, how);
          return out;
        });
        for (int r = 0; r < count; ++r) {
          for (int c = 0; c < stride; ++c) {
            const float before = tile[r * stride + c], after = y[r * stride + c];
            if (c >= cols) {
              EXPECT_EQ(before, after);
              continue;
            }
            const double active = activation_of(activation, scale * before + (biased ? bias[c] : 0.0));
            const double truth = (cap > 0 ? cap * std::tanh(active / cap) : active) + (adds ? residual[r * residual_stride + c] : 0.0);
            EXPECT_NEAR(after, truth, 1e-6 * (1 + std::abs(active)));
          }
        }
      }
    }
  }
}

TEST(Rows, GateMultiplyAndScaleAdd) {
  for (int n : sizes()) {
    const Floats a = random(n, n), b = random(n, n + 1), c = random(n, n + 2);
    const Floats d = random(n, n + 3);
    for (Activation activation : every_activation()) {
      if (activation == Activation::xielu) continue;  // only Linear has the parameters of xielu
      for (int variant = 0; variant < 4; ++variant) {
        const bool gate_bias = variant & 1, up_bias = variant & 2;
        const Floats y = on_all("gate", [&](const RowKernels& rows) {
          Floats out = a;
          rows.gate(out.data(), b.data(), {gate_bias ? c.data() : nullptr, up_bias ? d.data() : nullptr, activation}, n);
          return out;
        });
        for (int i = 0; i < n; ++i) {
          const double gate = activation_of(activation, a[i] + (gate_bias ? double{c[i]} : 0)), up = b[i] + (up_bias ? double{d[i]} : 0);
          EXPECT_NEAR(y[i], gate * up, 2e-6 * (1 + std::abs(gate * up)));
        }
      }
      for (int repeat : {1, 5, 16, 64}) {
        const Floats wide = random(static_cast<std::size_t>(n) * repeat, n + 4);
        for (bool in_place : {false, true}) {
          const Floats y = on_all("multiply", [&](const RowKernels& rows) {
            Floats out = in_place ? wide : Floats(wide.size(), kNan);
            rows.multiply(in_place ? out.data() : wide.data(), b.data(), activation, -0.75f, n, repeat, out.data());
            return out;
          });
          for (std::size_t i = 0; i < wide.size(); ++i) {
            const double truth = -0.75 * wide[i] * activation_of(activation, b[i / static_cast<std::size_t>(repeat)]);
            ASSERT_NEAR(y[i], truth, 2e-6 * (1 + std::abs(truth)));
          }
        }
      }
    }
    for (int variant = 0; variant < 4; ++variant) {
      const Floats y = on_all("scale_add", [&](const RowKernels& rows) {
        Floats out(n, kNan);
        rows.scale_add(a.data(), 1.5f, variant & 1 ? b.data() : nullptr, variant & 2 ? c.data() : nullptr, n, out.data());
        return out;
      });
      for (int i = 0; i < n; ++i) EXPECT_NEAR(y[i], 1.5 * a[i] + (variant & 1 ? b[i] : 0.0) + (variant & 2 ? c[i] : 0.0), 2e-6);
    }
  }
}

TEST(Rows, RopeTurnsPairs) {
  for (int dims : {2, 4, 8, 16, 18, 30, 32, 34, 64, 72, 80, 96, 128, 256}) {
    for (bool interleaved : {false, true}) {
      const int half = dims / 2;
      const Floats x = random(dims + 3, dims), angle = random(half, dims + 1, 2.0f);
      Floats cos(half), sin(half);
      for (int i = 0; i < half; ++i) cos[i] = std::cos(angle[i]), sin[i] = std::sin(angle[i]);
      const Floats y = on_all("rope", [&](const RowKernels& rows) {
        Floats out = x;
        rows.rope(out.data(), cos.data(), sin.data(), dims, interleaved);
        return out;
      });
      for (int i = 0; i < half; ++i) {
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        EXPECT_NEAR(y[a], double{x[a]} * cos[i] - double{x[b]} * sin[i], 1e-6);
        EXPECT_NEAR(y[b], double{x[a]} * sin[i] + double{x[b]} * cos[i], 1e-6);
      }
      for (int i = dims; i < dims + 3; ++i) EXPECT_EQ(x[i], y[i]);
    }
  }
}

TEST(Rows, PoolKinds) {
  for (int rows_in : {1, 2, 7, 129}) {
    for (int n : {1, 15, 16, 33, 384}) {
      const int stride = n + 5;
      const Floats x = random(rows_in * stride, n);
      for (PoolKind kind :
           {PoolKind::mean, PoolKind::cls, PoolKind::last, PoolKind::max, PoolKind::mean_sqrt_len, PoolKind::weighted_mean}) {
        const Floats y = on_all("pool", [&](const RowKernels& rows) {
          Floats out(n, kNan);
          rows.pool(x.data(), stride, 0, rows_in, n, kind, out.data());
          return out;
        });
        for (int c = 0; c < n; ++c) {
          double sum = 0.0, weighted = 0.0, weights = 0.0, top = -kInf;
          for (int r = 0; r < rows_in; ++r) {
            const double v = x[r * stride + c];
            sum += v, weighted += (r + 1) * v, weights += r + 1, top = std::max(top, v);
          }
          const double truth = kind == PoolKind::mean            ? sum / rows_in
                               : kind == PoolKind::cls           ? x[c]
                               : kind == PoolKind::last          ? x[(rows_in - 1) * stride + c]
                               : kind == PoolKind::max           ? top
                               : kind == PoolKind::mean_sqrt_len ? sum / std::sqrt(double(rows_in))
                                                                 : weighted / weights;
          EXPECT_NEAR(y[c], truth, 4e-6);
        }
      }
    }
  }
  for (const Kernels* kernels : native_kernels()) {
    const Floats x = {1.0f, kNan, 2.0f};
    float out = 0.0f;
    kernels->rows.pool(x.data(), 1, 0, 3, 1, PoolKind::max, &out);
    EXPECT_TRUE(std::isnan(out)) << "a maximum must not hide a NaN";
  }
}

TEST(Rows, LogSumExp) {
  for (int n : {1, 2, 15, 16, 17, 70, 1023, 1024, 1025, 50000}) {
    Floats x = random(n, n, 10.0f);
    x[n / 2] = -kInf;
    x[n - 1] = 3.0f;
    const Floats y =
        on_all("log_sum_exp", [&](const RowKernels& rows) { return Floats{static_cast<float>(rows.log_sum_exp(x.data(), n))}; });
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0.0;
    for (float v : x) sum += std::exp(v - top);
    for (const Kernels* kernels : native_kernels()) EXPECT_NEAR(kernels->rows.log_sum_exp(x.data(), n), top + std::log(sum), 5e-7) << n;
  }
}

TEST(Rows, SkipStopsBeforeWhatIsAboveOrNoNumber) {
  const auto skipped = [](const Floats& x, float bound) {
    const Floats y = on_all("skip", [&](const RowKernels& rows) {
      return Floats{static_cast<float>(rows.skip(x.data(), static_cast<std::int64_t>(x.size()), bound))};
    });
    return static_cast<std::size_t>(y[0]);
  };
  constexpr std::size_t kBlock = kSkip, kSize = 5 * kBlock + 3;
  const Floats below(kSize, -2.0f);
  EXPECT_EQ(skipped(below, -2.0f), 5 * kBlock) << "what equals the bound is not above it; the rest is no whole block";
  EXPECT_EQ(skipped(Floats(3, 0.0f), 1.0f), 0u);
  for (std::size_t at = 0; at < kSize; ++at) {
    for (const float odd : {-1.0f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      Floats x = below;
      x[at] = odd;
      EXPECT_EQ(skipped(x, -2.0f), std::min(at / kBlock, std::size_t{5}) * kBlock) << at << ": " << odd;
    }
  }
}

struct Quantized {
  std::vector<std::int8_t> codes;
  Floats scales;
  std::vector<std::int32_t> sums;
  Floats scaled_sums;
  bool operator==(const Quantized& other) const {
    return codes == other.codes && sums == other.sums &&
           std::memcmp(scales.data(), other.scales.data(), scales.size() * sizeof(float)) == 0 &&
           std::memcmp(scaled_sums.data(), other.scaled_sums.data(), scaled_sums.size() * sizeof(float)) == 0;
  }
};

Quantized quantized(const RowKernels& rows, const Floats& x, int stride, int count, int first, int total, int cols) {
  const std::size_t blocks = (cols + kQuantBlock - 1) / kQuantBlock;
  Quantized q{std::vector<std::int8_t>(blocks * total * kQuantBlock, 99), Floats(blocks * total, 99.0f),
              std::vector<std::int32_t>(blocks * total * 2, 99), Floats(blocks * total, 99.0f)};
  rows.quantize(x.data(), stride, count, first,
                QuantRows{q.codes.data(), q.scales.data(), q.sums.data(), q.scaled_sums.data(), total, cols});
  return q;
}

TEST(Rows, QuantizeLayoutAndError) {
  for (int cols : {1, 15, 16, 17, 31, 32, 33, 64, 96, 576, 640}) {
    const int stride = cols + 3, count = 4, first = 2, total = 7;
    const Floats x = random(stride * count, cols, 2.0f);
    const Quantized q = quantized(native_kernels().front()->rows, x, stride, count, first, total, cols);
    for (const Kernels* kernels : native_kernels())
      EXPECT_TRUE(q == quantized(kernels->rows, x, stride, count, first, total, cols)) << kernels->isa;
    for (int block = 0; block * kQuantBlock < cols; ++block) {
      for (int row = 0; row < total; ++row) {
        const int at = block * total + row;
        if (row < first || row >= first + count) {
          EXPECT_EQ(q.scales[at], 99.0f) << "a row outside was written";
          continue;
        }
        float largest = 0.0f;
        int sums[2] = {};
        for (int i = 0; i < kQuantBlock; ++i) {
          const int c = block * kQuantBlock + i, code = q.codes[at * kQuantBlock + i];
          const float v = c < cols ? x[(row - first) * stride + c] : 0.0f;
          largest = std::max(largest, std::abs(v));
          sums[i / 16] += code;
          EXPECT_LE(std::abs(code), 127);
          EXPECT_LE(std::abs(v - code * q.scales[at]), q.scales[at] * 0.50001f);
        }
        EXPECT_EQ(q.scales[at], largest / 127.0f);
        EXPECT_EQ(q.sums[2 * at], sums[0]);
        EXPECT_EQ(q.sums[2 * at + 1], sums[1]);
        EXPECT_EQ(q.scaled_sums[at], q.scales[at] * static_cast<float>(sums[0] + sums[1]));
      }
    }
  }
}

TEST(Rows, QuantizeRoundsTiesToEven) {
  Floats x(32, 0.0f);
  x[0] = 127.0f;
  for (int i = 1; i < 32; ++i) x[i] = static_cast<float>(i) - 15.5f;
  for (const Kernels* kernels : native_kernels()) {
    const Quantized q = quantized(kernels->rows, x, 32, 1, 0, 1, 32);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(q.codes[i], static_cast<int>(std::nearbyint(x[i])));
  }
}

TEST(Rows, QuantizeOfZeroTinyAndBrokenBlocks) {
  for (const Kernels* kernels : native_kernels()) {
    for (float tiny : {0.0f, 1e-31f, 1e-40f}) {
      const Quantized q = quantized(kernels->rows, Floats(32, tiny), 32, 1, 0, 1, 32);
      EXPECT_EQ(q.scales[0], 0.0f);
      EXPECT_EQ(std::count(q.codes.begin(), q.codes.end(), 0), 32);
    }
    for (float broken : {kNan, kInf, -kInf}) {
      for (int at : {0, 17, 31}) {
        Floats x(32, 1.0f);
        x[at] = broken;
        const Quantized q = quantized(kernels->rows, x, 32, 1, 0, 1, 32);
        EXPECT_FALSE(std::isfinite(q.scales[0]));
        for (auto code : q.codes) EXPECT_GE(code, -127);
        double product = 0.0;  // a product with this block must not be finite, so that the bad value shows in the result
        for (auto code : q.codes) product += static_cast<float>(code) * q.scales[0];
        EXPECT_FALSE(std::isfinite(product));
      }
    }
    const Quantized q = quantized(kernels->rows, Floats(32, 3e38f), 32, 1, 0, 1, 32);
    EXPECT_EQ(std::count(q.codes.begin(), q.codes.end(), 127), 32);
  }
}

// ---------------------------------------------------------------- attention
struct AlignedFree {
  void operator()(std::uint8_t* p) const { std::free(p); }
};

// A cache of one kv head. Pages have exactly the size that they need. At first all their bytes are 0xff, which is NaN as an f32, an f16 and
// a scale of q8_0, so that reads of unwritten positions show.
struct Cache {
  KvFormat format;
  int head_dim;
  std::vector<std::unique_ptr<std::uint8_t[], AlignedFree>> storage;
  std::vector<const std::uint8_t*> pages;

  Cache(const RowKernels& rows, KvFormat f, int dim, const Floats& k, const Floats& v) : format(f), head_dim(dim) {
    const int length = static_cast<int>(k.size()) / dim;
    const auto bytes = static_cast<std::size_t>(kv_page_bytes(f, dim, dim));
    for (int first = 0; first < length; first += kPageTokens) {
      auto* page = static_cast<std::uint8_t*>(std::aligned_alloc(64, bytes));
      std::memset(page, 0xff, bytes);
      storage.emplace_back(page);
      pages.push_back(page);
      const int count = std::min(kPageTokens, length - first), split = count / 3;  // the page is filled by two calls
      const float *pk = k.data() + first * dim, *pv = v.data() + first * dim;
      rows.kv_store(f, dim, dim, pk, pv, dim, dim, 0, split, page);
      rows.kv_store(f, dim, dim, pk + split * dim, pv + split * dim, dim, dim, split, count - split, page);
    }
  }

  // Returns number d of a position's stored value, or of its key if `value` is false. kernels.h describes the layout of a page.
  double at(bool value, int position, int d) const {
    const std::uint8_t* page = pages[position / kPageTokens];
    const int t = position % kPageTokens, plane = kPageTokens * head_dim, i = value ? t * head_dim + d : d * kPageTokens + t;
    const auto read = [&](auto type, std::size_t offset) {
      std::memcpy(&type, page + offset, sizeof(type));
      return type;
    };
    const std::size_t element = static_cast<std::size_t>(value ? plane + i : i);
    if (format == KvFormat::f32) return read(float{}, element * 4);
    if (format == KvFormat::f16) return f16_to_f32(read(std::uint16_t{}, element * 2));
    const std::size_t scales = kPageTokens * sizeof(float), side = value ? plane + scales : 0;
    return double{read(float{}, side + plane + t * sizeof(float))} * read(std::int8_t{}, side + i);
  }
};

constexpr KvFormat kEveryKv[] = {KvFormat::f16, KvFormat::f32, KvFormat::q8_0};
static_assert(std::size(kEveryKv) == std::size(kKvFormats));

TEST(Rows, PagesHoldWhatWasStored) {
  for (KvFormat format : kEveryKv) {
    for (int dim : {1, 8, 24, 32, 64, 72, 80, 512}) {
      const int length = 45;
      const Floats k = random(length * dim, dim, 2.0f), v = random(length * dim, dim + 1, 2.0f);
      const Cache first(native_kernels().front()->rows, format, dim, k, v);
      for (const Kernels* kernels : native_kernels()) {
        const Cache cache(kernels->rows, format, dim, k, v);
        for (std::size_t p = 0; p < cache.pages.size(); ++p) {
          EXPECT_EQ(std::memcmp(cache.pages[p], first.pages[p], static_cast<std::size_t>(kv_page_bytes(format, dim, dim))), 0)
              << kernels->isa;
        }
      }
      for (int t = 0; t < length; ++t) {
        float top_k = 0.0f, top_v = 0.0f;
        for (int d = 0; d < dim; ++d) top_k = std::max(top_k, std::abs(k[t * dim + d])), top_v = std::max(top_v, std::abs(v[t * dim + d]));
        for (int d = 0; d < dim; ++d) {
          const float key = k[t * dim + d], value = v[t * dim + d];
          if (format == KvFormat::f32) {
            EXPECT_EQ(first.at(false, t, d), key);
            EXPECT_EQ(first.at(true, t, d), value);
          } else if (format == KvFormat::f16) {
            EXPECT_EQ(first.at(false, t, d), f16_to_f32(f32_to_f16(key)));
            EXPECT_EQ(first.at(true, t, d), f16_to_f32(f32_to_f16(value)));
          } else {
            EXPECT_NEAR(first.at(false, t, d), key, top_k / 254 * 1.0001);
            EXPECT_NEAR(first.at(true, t, d), value, top_v / 254 * 1.0001);
          }
        }
      }
    }
  }
}

struct Case {
  int length, window;
  float softcap;
};

Floats attended(const RowKernels& rows, const Cache& cache, float softcap, const std::vector<Query>& queries, std::int64_t reach = 0) {
  const std::int64_t stride = cache.head_dim + 2, count = static_cast<std::int64_t>(queries.size());
  const std::int64_t chunks = (static_cast<std::int64_t>(cache.pages.size()) * kPageTokens + kChunkKeys - 1) / kChunkKeys;
  Floats partials(chunks * count * stride), out(count * cache.head_dim);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const AttendCall call{
        cache.format, cache.head_dim, cache.head_dim, 1.0f / std::sqrt(static_cast<float>(cache.head_dim)), softcap, cache.pages.data(), c,
        reach};
    rows.attend(call, queries.data(), static_cast<int>(count), partials.data() + c * count * stride);
  }
  for (std::int64_t q = 0; q < count; ++q) {
    rows.merge(partials.data() + q * stride, chunks, count * stride, cache.head_dim, -kInf, out.data() + q * cache.head_dim);
  }
  return out;
}

void expect_attention(const Cache& cache, const Query& query, float softcap, const float* got, std::int64_t reach = 0) {
  const int dim = cache.head_dim;
  std::vector<double> scores, out(dim, 0.0);
  double top = -kInf, total = 0.0;
  for (std::int64_t t = query.first_key; t < query.last_key; ++t) {
    double score = 0.0;
    for (int d = 0; d < dim; ++d) score += query.q[d] * cache.at(false, static_cast<int>(t), d);
    score /= std::sqrt(double(dim));
    if (softcap > 0.0f) score = softcap * std::tanh(score / softcap);
    const std::int64_t distance = t - query.position;
    if (query.bias) score += query.bias[std::clamp(distance, -reach, reach) + reach];
    score -= double{query.slope} * static_cast<double>(std::abs(distance));
    scores.push_back(score);
    top = std::max(top, score);
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    total += weight;
    for (int d = 0; d < dim; ++d) out[d] += weight * cache.at(true, static_cast<int>(query.first_key) + static_cast<int>(i), d);
  }
  for (int d = 0; d < dim; ++d) ASSERT_NEAR(got[d], out[d] / total, 1e-5) << "dimension " << d << " of " << dim;
}

TEST(Rows, AttentionOverChunksWindowsAndCaps) {
  const Case cases[] = {{1, 0, 0.0f},   {26, 0, 0.0f},   {31, 7, 0.0f},   {33, 0, 30.0f}, {255, 0, 0.0f},
                        {256, 0, 0.0f}, {257, 0, 50.0f}, {300, 40, 0.0f}, {513, 0, 0.0f}, {700, 300, 20.0f}};
  for (KvFormat format : kEveryKv) {
    for (int dim : {8, 32, 40, 64, 72, 80, 96, 128, 256}) {
      for (const Case& c : cases) {
        if (dim > 96 && c.length > 300) continue;
        const Floats k = random(c.length * dim, dim + c.length, 1.5f), v = random(c.length * dim, dim + c.length + 1);
        const Cache cache(native_kernels().back()->rows, format, dim, k, v);
        const Floats q = random(kMaxQueries * dim, dim + c.length + 2, 2.0f);
        std::vector<Query> queries;  // queries at the last positions, as in prefill
        for (int i = 0; i < kMaxQueries; ++i) {
          const std::int64_t last = std::max(1, c.length - i * (c.length > 256 ? 19 : 1));
          queries.push_back({q.data() + i * dim, c.window > 0 ? std::max<std::int64_t>(0, last - c.window) : 0, last});
        }
        const Floats out = on_all("attention", [&](const RowKernels& rows) { return attended(rows, cache, c.softcap, queries); });
        for (int i = 0; i < kMaxQueries; ++i) {
          ASSERT_NO_FATAL_FAILURE(expect_attention(cache, queries[i], c.softcap, out.data() + i * dim))
              << "format " << static_cast<int>(format) << ", length " << c.length << ", query " << i;
        }
      }
    }
  }
}

// Scores must get the right biases and slopes for keys on both sides of a query's position. The bias tables end before, inside and after a
// vector of keys, and one call has queries of several heads.
TEST(Rows, AttentionWithBiasesAndSlopes) {
  const int dim = 40, length = 420;
  const Floats k = random(length * dim, 1, 1.5f), v = random(length * dim, 2), q = random(kMaxQueries * dim, 3, 2.0f);
  for (KvFormat format : kEveryKv) {
    const Cache cache(native_kernels().back()->rows, format, dim, k, v);
    for (std::int64_t reach : {0, 1, 7, 15, 16, 40, 91, 300, 600}) {
      const Floats bias = random(kMaxQueries * static_cast<std::size_t>(2 * reach + 1), 4);
      std::vector<Query> queries;
      for (int i = 0; i < kMaxQueries; ++i) {
        const std::int64_t position = i * 27 + (i % 3), last = i % 2 ? position + 1 : length;
        const float* table = bias.data() + i * (2 * reach + 1);
        const std::int64_t first = i % 5 == 4 ? position / 2 : 0;
        queries.push_back({q.data() + i * dim, first, last, position, i % 4 ? table : nullptr, i % 3 ? 0.0f : 0.03f});
      }
      const Floats out = on_all("by distance", [&](const RowKernels& rows) { return attended(rows, cache, 0.0f, queries, reach); });
      for (int i = 0; i < kMaxQueries; ++i) {
        ASSERT_NO_FATAL_FAILURE(expect_attention(cache, queries[i], 0.0f, out.data() + i * dim, reach)) << reach << ", query " << i;
        const Floats alone = attended(native_kernels().back()->rows, cache, 0.0f, {queries[i]}, reach);
        expect_same_bits(alone, Floats(out.begin() + i * dim, out.begin() + (i + 1) * dim), "a query by distance, in company");
      }
    }
  }
}

TEST(Rows, QueriesAreIndependentOfTheirCompany) {
  std::mt19937 engine(7);
  for (KvFormat format : kEveryKv) {
    for (int dim : {32, 64, 72, 128}) {
      const int length = 420;
      const Floats k = random(length * dim, dim), v = random(length * dim, dim + 1), q = random(kMaxQueries * dim, dim + 2);
      const RowKernels& rows = native_kernels().back()->rows;
      const Cache cache(rows, format, dim, k, v);
      std::vector<Query> queries;
      std::vector<Floats> alone;
      for (int i = 0; i < kMaxQueries; ++i) {
        std::int64_t a = engine() % length, b = engine() % length;
        if (i % 3 == 0) a = 0, b = length - i - 1;
        queries.push_back({q.data() + i * dim, std::min(a, b), std::max(a, b) + 1});
        alone.push_back(attended(rows, cache, 0.0f, {queries.back()}));
      }
      for (int round = 0; round < 40; ++round) {
        std::vector<int> order(kMaxQueries);
        for (int i = 0; i < kMaxQueries; ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), engine);
        order.resize(1 + engine() % kMaxQueries);
        std::vector<Query> company;
        for (int i : order) company.push_back(queries[i]);
        const Floats out = attended(rows, cache, 0.0f, company);
        for (std::size_t i = 0; i < order.size(); ++i) {
          expect_same_bits(alone[order[i]], Floats(out.begin() + i * dim, out.begin() + (i + 1) * dim), "query in company");
        }
      }
    }
  }
}

TEST(Rows, AQueryThatSeesNothingSaysSo) {
  const int dim = 64;
  const Floats k = random(300 * dim, 1), v = random(300 * dim, 2), q = random(dim, 3);
  for (const Kernels* kernels : native_kernels()) {
    const Cache cache(kernels->rows, KvFormat::f16, dim, k, v);
    const Query queries[] = {{q.data(), 0, 256}, {q.data(), 256, 300}, {q.data(), 5, 5}};
    Floats partial(3 * (dim + 2), kNan);
    kernels->rows.attend({KvFormat::f16, dim, dim, 1.0f, 0.0f, cache.pages.data(), 1}, queries, 3, partial.data());
    for (int i : {0, 2}) {
      EXPECT_EQ(partial[i * (dim + 2)], -kInf);
      EXPECT_EQ(partial[i * (dim + 2) + 1], 0.0f);
      EXPECT_EQ(partial[i * (dim + 2) + 2], 0.0f);
    }
    EXPECT_TRUE(std::isfinite(partial[dim + 2]));
  }
}

TEST(Rows, BrokenQueriesAndKeysStayVisibleAndLocal) {
  const int dim = 64, length = 40;
  Floats k = random(length * dim, 1), v = random(length * dim, 2), q = random(3 * dim, 3);
  q[dim + 5] = kNan;
  v[35 * dim] = kInf;  // seen by the third query only
  for (const Kernels* kernels : native_kernels()) {
    const Cache cache(kernels->rows, KvFormat::f32, dim, k, v);
    const std::vector<Query> queries = {{q.data(), 0, 35}, {q.data() + dim, 0, 35}, {q.data() + 2 * dim, 0, 40}};
    const Floats out = attended(kernels->rows, cache, 0.0f, queries);
    for (int d = 0; d < dim; ++d) {
      EXPECT_TRUE(std::isfinite(out[d]));
      EXPECT_TRUE(std::isnan(out[dim + d]));
    }
    EXPECT_FALSE(std::isfinite(out[2 * dim]));
  }
}

// ---------------------------------------------------------------- choosing
TEST(Kernels, KnownOnes) {
  ASSERT_NE(kernels_for("scalar"), nullptr);
  EXPECT_STREQ(kernels_for("scalar")->isa, "scalar");
  EXPECT_EQ(kernels_for("avx9000"), nullptr);
  for (Format format : {Format::F32, Format::Q4_K}) EXPECT_NE(kernels().matrix[format].product_f32, nullptr);
  EXPECT_NE(kernels().rows.attend, nullptr);
}

TEST(Kernels, PageBytes) {
  EXPECT_EQ(kv_page_bytes(KvFormat::f32, 32, 32), 2 * 32 * 32 * 4);
  EXPECT_EQ(kv_page_bytes(KvFormat::f16, 64, 64), 2 * 32 * 64 * 2);
  EXPECT_EQ(kv_page_bytes(KvFormat::q8_0, 64, 64), 2 * (32 * 64 + 32 * 4));
  EXPECT_EQ(kv_page_bytes(KvFormat::f16, 192, 128), 32 * (192 + 128) * 2);
  for (KvFormat format : kEveryKv) {
    for (int dim : {1, 7, 72, 512})
      for (int value_dim : {dim, 3, 16}) EXPECT_EQ(kv_page_bytes(format, dim, value_dim) % 64, 0);
    EXPECT_THROW(kv_page_bytes(format, 64, 513), Error);
    EXPECT_THROW(kv_page_bytes(format, 0, 64), Error);
  }
}

// Prints which kernels PUMICE_ISA=isa chooses, or the error. Runs in a child process, because a process chooses its instruction set once.
void choose_and_report(const char* isa) {
  setenv("PUMICE_ISA", isa, 1);
  try {
    std::fprintf(stderr, "chose %s\n", kernels().isa);
  } catch (const Error& error) {
    std::fprintf(stderr, "error %d: %s\n", static_cast<int>(error.kind()), error.what());
  }
  std::exit(0);
}
TEST(KernelsDeathTest, EnvironmentChooses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const Kernels* kernels : native_kernels()) {  // the child process must choose these kernels, not just know their name
    EXPECT_EXIT(choose_and_report(kernels->isa), testing::ExitedWithCode(0), std::string("chose ") + kernels->isa + "\n");
  }
  EXPECT_EXIT(choose_and_report(""), testing::ExitedWithCode(0), "chose ");
  std::string known;
  for (const char* isa : known_isas()) known = isa + (known.empty() ? "" : ", " + known);
  EXPECT_EXIT(choose_and_report("sse1"), testing::ExitedWithCode(0),
              "error 0: .*PUMICE_ISA is \"sse1\"; known are " + known + ", and this machine runs .*scalar");
}

}  // namespace
}  // namespace pumice::cpu::rows_test
