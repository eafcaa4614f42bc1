#include "cpu/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "core/ops.h"
#include "cpu/kernels.h"

namespace pumice::cpu {
namespace {

constexpr std::int64_t kRows = 37, kCols = 512, kTokens = 7;
// Limit of the error in most checks. All instruction sets add in the same order, so their results have equal bits. kLimit would still allow
// differences in the last bit.
constexpr double kLimit = 1e-12;
// Limit of the error if activations are rounded to bfloat16 (8 significant bits). Only one instruction set rounds them, and the scalar
// kernels do not.
constexpr double kBf16Limit = 5e-6;

// Memory aligned to 64 bytes, like the scratch memory that the executor passes to kernels.
template <class T>
class Aligned {
 public:
  explicit Aligned(std::size_t count)
      : data_(static_cast<T*>(::operator new(count * sizeof(T) + 64, std::align_val_t{64}))), count_(count) {
    std::memset(static_cast<void*>(data_.get()), 0, count * sizeof(T) + 64);
  }
  T* data() { return data_.get(); }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  std::span<const T> span() const { return {data_.get(), count_}; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t count_;
};

class Random {
 public:
  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) / 8388608.0f - 1.0f; }  // in [-1, 1)

 private:
  std::uint64_t state_ = 1;
};

Aligned<float> floats(std::size_t count, Random& random) {
  Aligned<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random.uniform();
  return values;
}

double nmse(std::span<const float> found, std::span<const float> expected) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    power += double{expected[i]} * expected[i];
  }
  return power > 0 ? error / power : error;
}

class SelfTest {
 public:
  std::vector<Check> run() {
    for (const FormatInfo& format : kFormats) products(format);
    fixed_point();
    eight_bits();
    norms();
    activations();
    attention();
    mixtures();
    recurrent();
    return std::move(checks_);
  }

 private:
  // Calls compute(kernels, out) with the chosen and with the scalar instruction set, and records the error of the chosen set's result.
  template <class Compute>
  void check(std::string name, std::size_t count, const Compute& compute, double limit = kLimit) {
    Aligned<float> found(count), expected(count);
    compute(kernels(), found.data());
    compute(*kernels_for("scalar"), expected.data());
    checks_.push_back({std::move(name), nmse(found.span(), expected.span()), limit});
  }

  // Weights are random bytes below 64, so that every half float, float and exponent in them is finite, whatever the layout of the format.
  void products(const FormatInfo& format) {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(kRows * row_bytes(format.format, kCols)));
    for (std::uint8_t& byte : rows) byte = static_cast<std::uint8_t>(random_.bits()) & 63;
    Aligned<float> x = floats(kTokens * kCols, random_);
    const auto groups_of = [&](const Kernels& k) {
      const FormatKernels& f = k.matrix[format.format];
      const std::int64_t count = (kRows + kGroupRows - 1) / kGroupRows, stride = row_bytes(format.format, kCols);
      Aligned<std::uint8_t> groups(static_cast<std::size_t>(count * f.group_bytes(kCols)));
      for (std::int64_t g = 0; g < count; ++g) {
        f.pack_group(rows.data() + g * kGroupRows * stride, stride, std::min<std::int64_t>(kGroupRows, kRows - g * kGroupRows), kCols,
                     groups.data() + g * f.group_bytes(kCols));
      }
      return groups;
    };
    check(std::string("linear ") + std::string(format.name) + ", float activations", kRows * kTokens, [&](const Kernels& k, float* out) {
      Aligned<std::uint8_t> groups = groups_of(k);
      k.matrix[format.format].product_f32(groups.data(), kRows, kCols, x.data(), kCols, kTokens, out, kRows);
    });
    if (kernels().matrix[format.format].product_bf16 != kernels().matrix[format.format].product_f32) {
      check(
          std::string("linear ") + std::string(format.name) + ", bfloat16 activations", kRows * kTokens,
          [&](const Kernels& k, float* out) {
            Aligned<std::uint8_t> groups = groups_of(k);
            k.matrix[format.format].product_bf16(groups.data(), kRows, kCols, x.data(), kCols, kTokens, out, kRows);
          },
          kBf16Limit);
    }
    if (!format.quantized) return;
    check(std::string("linear ") + std::string(format.name) + ", int8 activations", kRows * kTokens, [&](const Kernels& k, float* out) {
      Aligned<std::uint8_t> groups = groups_of(k);
      constexpr std::size_t blocks = kCols / kQuantBlock;
      Aligned<std::int8_t> codes(kTokens * kCols);
      Aligned<float> scales(blocks * kTokens), scaled_sums(blocks * kTokens);
      Aligned<std::int32_t> sums(blocks * kTokens * 2);
      const QuantRows quantized{codes.data(), scales.data(), sums.data(), scaled_sums.data(), kTokens, kCols};
      k.rows.quantize(x.data(), kCols, kTokens, 0, quantized);
      k.matrix[format.format].product_int8(groups.data(), kRows, kCols, quantized, 0, kTokens, out, kRows);
    });
  }

  void fixed_point() {
    Aligned<float> w = floats(kRows * kCols, random_), x = floats(kTokens * kCols, random_);
    check("linear in fixed point", kRows * kTokens, [&](const Kernels& k, float* out) {
      const FixedKernels& f = k.matrix.fixed;
      const std::int64_t count = (kRows + kGroupRows - 1) / kGroupRows, bytes = f.group_bytes(kCols);
      Aligned<std::uint8_t> groups(static_cast<std::size_t>(count * bytes));
      for (std::int64_t g = 0; g < count; ++g)
        f.pack_group(w.data() + g * kGroupRows * kCols, std::min<std::int64_t>(kGroupRows, kRows - g * kGroupRows), kCols,
                     groups.data() + g * bytes);
      Aligned<std::int16_t> codes(kTokens * kCols);
      Aligned<float> scales(kTokens * kCols / kFixedBlock);
      Aligned<std::int32_t> starts(kTokens * kCols / kFixedBlock);
      const FixedRows rows{codes.data(), scales.data(), starts.data(), kTokens, kCols};
      k.rows.quantize_fixed(x.data(), kCols, kTokens, 0, rows);
      f.product(groups.data(), kRows, kCols, rows, 0, kTokens, out, kRows);
    });
  }

  void eight_bits() {
    Aligned<float> w = floats(kRows * kCols, random_), x = floats(kTokens * kCols, random_);
    check("linear in codes of 8 bits", kRows * kTokens, [&](const Kernels& k, float* out) {
      const ByteKernels& b = k.matrix.bytes;
      const std::int64_t count = (kRows + kGroupRows - 1) / kGroupRows, bytes = b.group_bytes(kCols);
      Aligned<std::uint8_t> groups(static_cast<std::size_t>(count * bytes)), codes(kTokens * kCols);
      for (std::int64_t g = 0; g < count; ++g)
        b.pack_group(w.data() + g * kGroupRows * kCols, std::min<std::int64_t>(kGroupRows, kRows - g * kGroupRows), kCols,
                     groups.data() + g * bytes);
      Aligned<std::int16_t> words(kTokens * kCols);
      Aligned<float> scales(kTokens * kCols / kByteBlock);
      Aligned<std::int32_t> starts(kTokens * kCols / kByteBlock);
      if (b.of_bytes) {
        const ByteRows rows{codes.data(), scales.data(), starts.data(), kTokens, kCols};
        k.rows.quantize_bytes(x.data(), kCols, kTokens, 0, {}, rows);
        b.of_bytes(groups.data(), kRows, kCols, rows, 0, kTokens, out, kRows);
      } else {
        const FixedRows rows{words.data(), scales.data(), starts.data(), kTokens, kCols};
        k.rows.quantize_words(x.data(), kCols, kTokens, 0, {}, rows);
        b.of_words(groups.data(), kRows, kCols, rows, 0, kTokens, out, kRows);
      }
    });
  }

  void norms() {
    Aligned<float> x = floats(kCols, random_), weight = floats(kCols, random_), bias = floats(kCols, random_);
    check("norm rms", kCols, [&](const Kernels& k, float* out) { k.rows.rms_norm(x.data(), weight.data(), nullptr, 1e-5f, kCols, out); });
    check("norm layer", kCols,
          [&](const Kernels& k, float* out) { k.rows.layer_norm(x.data(), weight.data(), bias.data(), nullptr, 1e-5f, kCols, out); });
  }

  void activations() {
    Aligned<float> x = floats(kCols, random_), other = floats(kCols, random_);
    for (std::size_t a = 0; a < std::size(kActivations); ++a) {
      const Epilogue how{
          .bias = other.data(), .activation = static_cast<Activation>(a), .scale = 3, .softcap = 2, .alpha_p = 0.8f, .alpha_n = 1.2f};
      check("activation " + std::string(kActivations[a]), kCols, [&](const Kernels& k, float* out) {
        std::copy(x.span().begin(), x.span().end(), out);
        k.rows.epilogue(out, kCols, 1, kCols, how);
      });
    }
    check("gate", kCols, [&](const Kernels& k, float* out) {
      std::copy(x.span().begin(), x.span().end(), out);
      k.rows.gate(out, other.data(), {other.data(), x.data(), Activation::silu, 1.5f, 0.5f}, kCols);
    });
    check("multiply", kCols,
          [&](const Kernels& k, float* out) { k.rows.multiply(x.data(), other.data(), Activation::sigmoid, 0.8f, kCols / 8, 8, out); });
  }

  void attention() {
    constexpr int head_dim = 64, keys = 70;
    constexpr std::int64_t reach = 20;  // some keys are farther away in both directions, because distances are -35 to 34
    Aligned<float> kv = floats(2 * keys * head_dim, random_), q = floats(head_dim, random_), bias = floats(2 * reach + 1, random_);
    constexpr std::int64_t numbers = 8;
    Aligned<float> places(2 * reach + 1), by_query = floats(numbers, random_), by_key = floats(keys * numbers, random_);
    for (std::int64_t d = 0; d <= 2 * reach; ++d) places.data()[d] = static_cast<float>(7 * d % numbers);
    for (std::size_t f = 0; f < std::size(kKvFormats); ++f) {
      check(std::string("attention, ") + kKvFormats[f] + " keys and values", head_dim, [&](const Kernels& k, float* out) {
        const auto format = static_cast<KvFormat>(f);
        const auto page_bytes = static_cast<std::size_t>(kv_page_bytes(format, head_dim, head_dim));
        constexpr int pages = (keys + kPageTokens - 1) / kPageTokens;
        Aligned<std::uint8_t> storage(pages * page_bytes);
        const std::uint8_t* table[pages];
        for (int page = 0; page < pages; ++page) {
          std::uint8_t* at = storage.data() + static_cast<std::size_t>(page) * page_bytes;
          table[page] = at;
          const float* rows = kv.data() + page * kPageTokens * head_dim;
          k.rows.kv_store(format, head_dim, head_dim, rows, rows + keys * head_dim, head_dim, head_dim, 0,
                          std::min(kPageTokens, keys - page * kPageTokens), at);
        }
        const AttendCall call{.format = format,
                              .key_dim = head_dim,
                              .value_dim = head_dim,
                              .scale = 0.125f,
                              .softcap = 0,
                              .pages = table,
                              .chunk = 0,
                              .reach = reach,
                              .places = places.data(),
                              .by_key_stride = numbers};
        const Query query{q.data(), 0, keys, keys / 2, bias.data(), 0.05f, by_query.data(), by_key.data()};
        Aligned<float> partial(head_dim + 16);
        k.rows.attend(call, &query, 1, partial.data());
        k.rows.merge(partial.data(), 1, head_dim + 2, head_dim, 0.3f, out);
      });
    }
  }

  void mixtures() {
    constexpr int experts = 40, chosen = 6, width = 70;
    Aligned<float> logits = floats(experts, random_), bias = floats(experts, random_), scales = floats(experts, random_);
    for (const RouteScore score : {RouteScore::softmax, RouteScore::sigmoid}) {
      check("route, " + std::string(kRouteScores[static_cast<std::size_t>(score)]), 2 * chosen, [&](const Kernels& k, float* out) {
        const RouteCall call{.experts = experts,
                             .chosen = chosen,
                             .groups = 4,
                             .kept = 2,
                             .score = score,
                             .bias = bias.data(),
                             .scales = scales.data(),
                             .normalised = true,
                             .floor = 1e-6f,
                             .scale = 2.5f};
        k.rows.route(call, logits.data(), out);
      });
    }
    Aligned<float> x = floats(2 * chosen * width, random_), weights = floats(chosen, random_), residual = floats(width, random_);
    check("sums of experts", width, [&](const Kernels& k, float* out) {
      const float *rows[chosen], *biases[chosen];
      for (int i = 0; i < chosen; ++i) {
        rows[i] = x.data() + i * width;
        biases[i] = x.data() + (chosen + i) * width;
      }
      k.rows.fold_choices(rows, biases, weights.data(), chosen, 0.7f, residual.data(), width, out);
    });
  }

  void recurrent() {
    constexpr int taps = 4, width = 70, key_dim = 37, rows = 21, count = 13;
    constexpr std::int64_t strip = key_dim * 16;
    Aligned<float> x = floats(taps * width, random_), weights = floats(taps * width, random_), bias = floats(width, random_);
    check("conv", width, [&](const Kernels& k, float* out) {
      const float* read[taps] = {nullptr, x.data(), x.data() + width, x.data() + 2 * width};
      k.rows.conv(read, weights.data(), bias.data(), taps, Activation::silu, width, out);
    });
    // Queries and keys are at most 0.1, because with large keys the state of the delta rule would grow from row to row.
    Aligned<float> qkv = floats(3 * rows * key_dim, random_), gates = floats(2 * rows, random_), begin = floats(strip, random_);
    for (std::int64_t i = 0; i < 2 * rows * key_dim; ++i) qkv[static_cast<std::size_t>(i)] *= 0.1f;
    for (const ScanRule rule : {ScanRule::ssd, ScanRule::delta}) {
      const bool delta = rule == ScanRule::delta;
      const auto factors = [&](const Kernels& k, float* out) {
        const ScanGates call{.step = gates.data(),
                             .beta = delta ? gates.data() + rows : nullptr,
                             .step_stride = 1,
                             .beta_stride = 1,
                             .step_bias = 0.3f,
                             .rate = -0.7f,
                             .floor = 0.01f,
                             .strength = 1.0f};
        k.rows.scan_gates(call, rows, out, out + rows);
      };
      const std::string name(kScanRules[static_cast<std::size_t>(rule)]);
      check("scan, factors of " + name, 2 * rows, factors);
      check("scan, " + name, rows * count + strip, [&](const Kernels& k, float* out) {
        Aligned<float> factor(2 * rows);
        factors(k, factor.data());
        const ScanCall call{.q = qkv.data(),
                            .k = qkv.data() + rows * key_dim,
                            .v = qkv.data() + 2 * rows * key_dim,
                            .q_stride = key_dim,
                            .k_stride = key_dim,
                            .v_stride = key_dim,
                            .decay = factor.data(),
                            .gain = factor.data() + rows,
                            .key_dim = key_dim,
                            .rule = rule,
                            .skip = delta ? 0.0f : 0.4f,
                            .out = out + strip,
                            .out_stride = count};
        k.rows.scan(call, rows, count, begin.data(), out);
      });
    }
  }

  Random random_;
  std::vector<Check> checks_;
};

}  // namespace

std::vector<Check> self_test() { return SelfTest().run(); }

}  // namespace pumice::cpu
