#include "cpu/sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/checked.h"

namespace pumice::cpu {
namespace {

constexpr int kBlock = kQuantBlock;
constexpr std::int64_t kBlockBytes = info(Format::Q5_0).block_bytes;
// The norm of a block of weights w with the errors e is max(|e|, |w| / kNormRatio) (sketch.h). |w| / |e| is about 20 for weights in Q8_0
// and in floats, so the norm is nearly always |e|.
constexpr double kNormRatio = 24;
// Largest allowed magnitude of activations. Their products with weights up to 1e6 are then far below the largest float.
constexpr float kLargest = 1e15f;

// A block of 32 floats as vectors of four floats. A loop over these vectors takes a quarter of the time of a loop over the floats, because
// it needs no shuffles.
using Lanes = float __attribute__((vector_size(4 * sizeof(float))));
constexpr int kVectors = kBlock / 4;
struct Block {
  Lanes v[kVectors];
};
Block load_block(const float* x) {
  Block block;
  std::memcpy(&block, x, sizeof block);
  return block;
}

// Returns an upper bound of the block's norm. 1 + 2^-20 covers the rounding error of `sum`, which is at most (kVectors + 4) * 2^-24 * sum.
double norm(const Block& block) {
  Lanes squares{};
  for (const Lanes x : block.v) squares += x * x;
  const double sum = double{squares[0]} + squares[1] + squares[2] + squares[3];
  return std::sqrt(sum) * (1 + 0x1p-20) + 1e-18;  // 1e-18 covers squares that underflow
}

// Returns the smallest half float that is at least `value`, which must not be negative. The result may be infinite.
std::uint16_t half_above(double value) {
  std::uint16_t half = f32_to_f16(static_cast<float>(value));
  while (double{f16_to_f32(half)} < value) ++half;
  return half;
}

// Writes a block of Q5_0 (core/formats_plain.cpp), which is the scale, then the highest bit of each code, then the low four bits of each
// code. Codes are -16 to 15.
void store_block(std::uint16_t scale, const int* codes, std::uint8_t* block) {
  std::uint32_t high = 0;
  std::memcpy(block, &scale, sizeof scale);
  for (int i = 0; i < kBlock; ++i) high |= static_cast<std::uint32_t>(codes[i] >= 0) << i;  // a code is stored as code + 16
  std::memcpy(block + 2, &high, sizeof high);
  for (int i = 0; i < kBlock / 2; ++i) block[6 + i] = static_cast<std::uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

// Stores 32 weights in Q5_0. Returns the block's norm n (sketch.h).
double store_weights(const float* weights, std::uint8_t* block) {
  const Block w = load_block(weights);
  Lanes lows{}, highs{};
  for (const Lanes x : w.v) lows = x < lows ? x : lows, highs = x > highs ? x : highs;
  const float least = std::min({lows[0], lows[1], lows[2], lows[3]}), most = std::max({highs[0], highs[1], highs[2], highs[3]});
  if (least == 0 && most == 0) {
    const int zeros[kBlock] = {};
    store_block(0, zeros, block);
    return 0;
  }
  const float scale = -least > most ? least / -16 : most / -16;
  const std::uint16_t half = f32_to_f16(std::clamp(scale, -65504.0f, 65504.0f));
  const float d = f16_to_f32(half), scaled = d == 0 ? 0 : 1 / d;
  using Codes = std::int32_t __attribute__((vector_size(4 * sizeof(std::int32_t))));
  int codes[kBlock];
  Block error;
  for (int i = 0; i < kVectors; ++i) {
    Lanes code = (w.v[i] * scaled + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
    code = code < -16.0f ? Lanes{} - 16.0f : code;
    code = code > 15.0f ? Lanes{} + 15.0f : code;
    const Codes integers = __builtin_convertvector(code, Codes);
    std::memcpy(codes + 4 * i, &integers, sizeof integers);
    error.v[i] = w.v[i] - d * code;
  }
  store_block(half, codes, block);
  // The term size * 2^-21 covers the rounding of `error`. Each element of `error` may be wrong by 2^-24 of its weight and 2^-24 of d *
  // code.
  const double size = norm(w);
  return std::max(norm(error) + size * 0x1p-21, size / kNormRatio);
}

void store_norms(const float* norms, int count, std::uint8_t* block) {
  double most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, double{norms[i]});
  const std::uint16_t half = half_above(most / 15);
  const double d = f16_to_f32(half);
  int codes[kBlock] = {};
  for (int i = 0; i < count; ++i) {
    if (norms[i] == 0) continue;
    codes[i] = std::min(15, static_cast<int>(std::ceil(norms[i] / d)));
    while (codes[i] < 15 && codes[i] * d < norms[i]) ++codes[i];
  }
  store_block(half, codes, block);
}

float above(double value) {
  const auto rounded = static_cast<float>(value);
  return rounded < value ? std::nextafter(rounded, HUGE_VALF) : rounded;
}

double factor_of(double codes, double rest, double rounding) {
  const double exact = codes + kNormRatio * rest;
  return (exact + rounding * (2 * kNormRatio + 2) * (codes + rest)) * (1 + 2 * rounding) + 1e-20;  // 1e-20 covers sums that underflow
}

std::int64_t code_at(const QuantRows& out, std::int64_t block, std::int64_t row) { return (block * out.rows + row) * kBlock; }

// Stores factors as codes from 0 to 127. Each code times the scale is at least the factor.
void store_factors(const double* factors, std::int64_t count, std::int64_t block, std::int64_t row, const QuantRows& out) {
  const double most = *std::max_element(factors, factors + count);
  const float scale = above(most / 127);
  std::int8_t* codes = out.codes + code_at(out, block, row);
  std::int32_t halves[2] = {};
  std::fill_n(codes, kBlock, std::int8_t{0});
  for (std::int64_t i = 0; i < count; ++i) {
    int code = std::min(127, static_cast<int>(std::ceil(factors[i] / double{scale})));
    while (code < 127 && code * double{scale} < factors[i]) ++code;
    codes[i] = static_cast<std::int8_t>(code);
    halves[i / 16] += code;
  }
  const std::int64_t at = block * out.rows + row;
  out.scales[at] = scale;
  out.sums[2 * at] = halves[0];
  out.sums[2 * at + 1] = halves[1];
  out.scaled_sums[at] = scale * static_cast<float>(halves[0] + halves[1]);
}

}  // namespace

// ---------------------------------------------------------------- when a sketch saves time
// Returns how many ids a head must have for each logit that is searched for, so that a sketch saves time. Returns 0 if a sketch of a head
// in this format never saves time. The numbers follow from the speed with the sketch on Zen 4, divided by the speed of the whole product:
// - Q8_0, 262,144 ids: 1.2 for one logit, 1.1 for four, 1.05 for eight
// - F16, 262,144 ids: 2.6 for one logit, 1.6 for twenty
// - F16, 49,152 ids: 1.6 for one logit, 0.9 for four
std::int64_t ids_for_each_rank(Format format) {
  switch (format) {
    case Format::F32:
    case Format::F16:
    case Format::BF16:
      return 13000;
    case Format::Q8_0:
      return 65536;
    default:
      return 0;
  }
}

bool can_sketch(const MatrixShape& head) {
  return ids_for_each_rank(head.format) > 0 && head.experts == 1 && head.cols % kBlock == 0 && packing_of(head) == Packing::format;
}

std::int64_t sketch_cols(std::int64_t cols) { return cols + round_up(cols / kBlock, std::int64_t{kBlock}); }
std::int64_t sketch_group_bytes(std::int64_t cols) { return kernels().matrix[Format::Q5_0].group_bytes(sketch_cols(cols)); }
std::uint64_t sketch_bytes(const MatrixShape& head) {
  return static_cast<std::uint64_t>(ceil_div(head.rows, kGroupRows) * sketch_group_bytes(head.cols));
}

MatrixId sketched_by(const Program& program, std::size_t op, const WeightShapes& weights) {
  if (op + 1 >= program.ops.size()) return MatrixId::none;
  const auto* linear = std::get_if<Linear>(&program.ops[op]);
  const auto* top = std::get_if<Top>(&program.ops[op + 1]);
  if (linear == nullptr || top == nullptr || top->logits != linear->out || linear->parts.size() != 1) return MatrixId::none;
  // The only operation on the results of the product may be a positive scale, because other operations might change the order of the
  // logits. The product must be `precise`, because activations may otherwise be rounded to coarser codes than factor_of() assumes.
  const LinearPart& part = linear->parts.front();
  const bool keeps_order = part.bias == VectorId::none && !linear->residual && linear->activation == Activation::none &&
                           linear->softcap == 0 && linear->scale > 0 && linear->precise;
  return keeps_order && can_sketch(weights.matrices[static_cast<std::size_t>(part.weight)]) ? part.weight : MatrixId::none;
}

std::vector<bool> sketched_matrices(std::span<const Program* const> programs, const WeightShapes& weights) {
  std::vector<bool> sketched(weights.matrices.size());
  for (const Program* program : programs) {
    for (std::size_t op = 0; op < program->ops.size(); ++op) {
      if (const MatrixId head = sketched_by(*program, op, weights); head != MatrixId::none) sketched[static_cast<std::size_t>(head)] = true;
    }
  }
  return sketched;
}

std::int32_t sketch_ranks(const MatrixShape& head, std::uint64_t step_bytes) {
  if (!can_sketch(head)) return 0;
  const std::uint64_t all = packed_bytes(head), sketch = sketch_bytes(head);
  if (sketch >= all || all - sketch < step_bytes / 20 * 3) return 0;
  return static_cast<std::int32_t>(head.rows / ids_for_each_rank(head.format));
}

// ---------------------------------------------------------------- packing
Sketcher::Sketcher(const PackedMatrix& head)
    : head_(head),
      weights_(static_cast<std::size_t>(head.cols)),
      norms_(static_cast<std::size_t>(head.cols / kBlock)),
      rows_(static_cast<std::size_t>(kGroupRows * row_bytes(Format::Q5_0, sketch_cols(head.cols)))) {}

void Sketcher::make(std::int64_t group, std::uint8_t* out) {
  const std::int64_t first = group * kGroupRows, count = std::min<std::int64_t>(kGroupRows, head_.rows - first);
  const std::int64_t cols = sketch_cols(head_.cols), stride = row_bytes(Format::Q5_0, cols);
  for (std::int64_t r = 0; r < count; ++r) {
    head_.unpack_row(first + r, weights_.data());
    make_row(weights_.data(), rows_.data() + r * stride);
  }
  kernels().matrix[Format::Q5_0].pack_group(rows_.data(), stride, count, cols, out);
}

void Sketcher::make_row(const float* weights, std::uint8_t* row) {
  const auto blocks = static_cast<std::int64_t>(norms_.size());
  for (std::int64_t b = 0; b < blocks; ++b, row += kBlockBytes) {
    norms_[static_cast<std::size_t>(b)] = above(store_weights(weights + b * kBlock, row));
  }
  for (std::int64_t b = 0; b < blocks; b += kBlock, row += kBlockBytes) {
    store_norms(norms_.data() + b, static_cast<int>(std::min<std::int64_t>(kBlock, blocks - b)), row);
  }
}

// ---------------------------------------------------------------- activations
bool sketch_activations(const RowKernels& kernels, const float* x, std::int64_t cols, std::int64_t row, const QuantRows& out) {
  QuantRows weights = out;
  weights.cols = cols;
  kernels.quantize(x, cols, 1, row, weights);
  const double rounding = static_cast<double>(cols + 16) * 0x1p-23;
  const std::int64_t blocks = cols / kBlock;
  double factors[kBlock];
  for (std::int64_t b = 0; b < blocks; ++b) {
    const float scale = out.scales[b * out.rows + row];
    if (!(scale * 127 < kLargest)) return false;  // also if the scale is NaN
    const std::int8_t* codes = out.codes + code_at(out, b, row);
    float of_codes[kBlock], rests[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      of_codes[i] = scale * static_cast<float>(codes[i]);
      rests[i] = x[b * kBlock + i] - of_codes[i];
    }
    // The term scale * sqrt(kBlock) / 500 covers products that round activations to two rows of int8 codes, because the rounding error of
    // an activation is then at most scale / 508. The factor 2^-21 covers the rounding errors of `of_codes` and `rests`.
    const double size = norm(load_block(of_codes)) * (1 + 0x1p-21);
    const double rest = norm(load_block(rests)) + double{scale} * std::sqrt(double{kBlock}) / 500 + size * 0x1p-21;
    factors[b % kBlock] = factor_of(size, rest, rounding);
    if (b % kBlock == kBlock - 1 || b == blocks - 1) store_factors(factors, b % kBlock + 1, blocks + b / kBlock, row, out);
  }
  return true;
}

}  // namespace pumice::cpu
