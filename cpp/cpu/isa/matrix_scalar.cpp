// The matrix kernels as plain loops, for processors without a supported vector unit. Their results have the same bits as those of all other
// instruction sets, because all kernels use the formulas of matrix/layout.h and matrix/fixed.h. The only exception is product_bf16 on
// AVX-512 BF16.
#include <cmath>

#include "cpu/matrix/fixed.h"
#include "cpu/matrix/plain.h"

namespace pumice::cpu::matrix {
namespace {

template <Format F>
void pack_codes(const std::uint8_t* const (&blocks)[16], int b, std::uint8_t* stream) {
  constexpr Layout l = Traits<F>::layout;
  __builtin_memset(stream + l.low_at(), 0, static_cast<std::size_t>(l.block_bytes() - l.low_at()));
  for (int lane = 0; lane < 16; ++lane) {
    for (int k = 0; k < 32; ++k) {
      const int code = file_code<F>(blocks[lane], b, k);
      const auto put = [&](const std::uint8_t* byte, int bits, int shift) {
        std::uint8_t& target = stream[byte - stream];
        target = static_cast<std::uint8_t>(target | bits << shift);
      };
      put(plane_byte<l.low>(stream + l.low_at(), lane, k), code & ((1 << l.low) - 1), plane_shift<l.low>(k));
      if constexpr (l.high > 0) put(plane_byte<l.high>(stream + l.high_at(), lane, k), code >> l.low, plane_shift<l.high>(k));
    }
  }
}

template <Format F>
float weight_bits(const std::uint8_t* word) {
  if constexpr (F == Format::F32) {
    float value;
    __builtin_memcpy(&value, word, 4);
    return value;
  } else if constexpr (F == Format::F16) {
    return f16_to_f32(load16(word));
  } else {
    return bf16_to_f32(load16(word));
  }
}

// Computes the product of F8_E4M3 weights by the formula in layout.h.
void product_runs(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                  std::int64_t count, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kRun = Traits<Format::F8_E4M3>::run;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint8_t* group = groups + row / 16 * group_bytes_of<Format::F8_E4M3>(cols);
    const int lane = static_cast<int>(row % 16);
    for (std::int64_t t = 0; t < count; ++t) {
      float acc = 0.0f;
      for (std::int64_t k = 0; k < cols; k += kRun) {
        float inner = 0.0f;
        for (std::int64_t i = k; i < k + kRun; ++i)
          inner = std::fma(kSumUnit * e4m3_value(run_code(group, lane, i)), x[t * x_stride + i], inner);
        acc = std::fma(run_scale(group, lane, k), inner, acc);
      }
      out[t * out_stride + row] = acc;
    }
  }
}

// Writes columns [first, first + count) of a group to `panel` as floats, in the order [column][16]. For quantized formats `first` must be a
// multiple of 32 and `count` must be 32.
template <Format F>
void unpack_panel(const std::uint8_t* group, std::int64_t first, std::int64_t count, float (*panel)[16]) {
  if constexpr (info(F).quantized) {
    for (int lane = 0; lane < 16; ++lane) {
      float row[32];
      unpack_block<F>(group, first / 32, lane, row);
      for (int k = 0; k < 32; ++k) panel[k][lane] = row[k];
    }
  } else {
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    for (std::int64_t k = 0; k < count; ++k)
      for (int lane = 0; lane < 16; ++lane) panel[k][lane] = weight_bits<F>(group + ((first + k) * 16 + lane) * kWord);
  }
}

template <Format F>
void product_columns(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                     std::int64_t count, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; row += 16) {
    const std::uint8_t* group = groups + row / 16 * group_bytes_of<F>(cols);
    const std::int64_t lanes = rows - row < 16 ? rows - row : 16;
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t lane = 0; lane < lanes; ++lane) out[t * out_stride + row + lane] = 0.0f;
    for (std::int64_t k0 = 0; k0 < cols; k0 += 32) {
      const std::int64_t ks = cols - k0 < 32 ? cols - k0 : 32;
      float panel[32][16];
      unpack_panel<F>(group, k0, ks, panel);
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          float& acc = out[t * out_stride + row + lane];
          for (std::int64_t k = 0; k < ks; ++k) acc = std::fma(panel[k][lane], x[t * x_stride + k0 + k], acc);
        }
      }
    }
  }
}

}  // namespace

template <Format F>
std::int64_t Scalar<F>::group_bytes(std::int64_t cols) {
  return group_bytes_of<F>(cols);
}

template <Format F>
void Scalar<F>::pack_group(const std::uint8_t* source, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  if constexpr (info(F).quantized)
    pack_group_with<F>({source, row_stride, rows}, cols, group, pack_codes<F>);
  else if constexpr (F == Format::F8_E4M3)
    pack_runs({source, row_stride, rows}, cols, group);
  else
    pack_words<typename Traits<F>::Word>({source, row_stride, rows}, cols, group);
}

template <Format F>
void Scalar<F>::unpack_row(const std::uint8_t* group, int lane, std::int64_t cols, float* out) {
  if constexpr (info(F).quantized) {
    unpack_row_plain<F>(group, lane, cols, out);
  } else if constexpr (F == Format::F8_E4M3) {
    unpack_runs(group, lane, cols, out);
  } else {
    constexpr std::int64_t kWord = sizeof(typename Traits<F>::Word);
    for (std::int64_t k = 0; k < cols; ++k) out[k] = weight_bits<F>(group + (16 * k + lane) * kWord);
  }
}

template <Format F>
void Scalar<F>::product_f32(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const float* x, std::int64_t x_stride,
                            std::int64_t count, float* out, std::int64_t out_stride) {
  if constexpr (F == Format::F8_E4M3) {
    product_runs(groups, rows, cols, x, x_stride, count, out, out_stride);
  } else {
    product_columns<F>(groups, rows, cols, x, x_stride, count, out, out_stride);
  }
}

template <Format F>
void Scalar<F>::product_int8(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const QuantRows& x, std::int64_t first,
                             std::int64_t count, float* out, std::int64_t out_stride) {
  if constexpr (info(F).quantized) {
    constexpr Layout l = Traits<F>::layout;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint8_t* group = groups + row / 16 * group_bytes_of<F>(cols);
      const int lane = static_cast<int>(row % 16);
      for (std::int64_t t = 0; t < count; ++t) out[t * out_stride + row] = 0.0f;
      for (std::int64_t super = 0; super < cols / l.super; ++super) {
        const std::uint8_t* head = group + super * l.super_bytes();
        LaneScales scales[8];
        int values[8][32];
        for (int b = 0; b < l.blocks(); ++b) {
          const std::uint8_t* block = head + block_at<F>(b);
          scales[b] = lane_scales<F>(head, block, lane);
          for (int k = 0; k < 32; ++k) values[b][k] = stream_value<F>(head, block, lane, k);
        }
        for (std::int64_t t = 0; t < count; ++t) {
          float& acc = out[t * out_stride + row];
          float inner = 0.0f, minima = 0.0f;
          for (int b = 0; b < l.blocks(); ++b) {
            const std::int64_t at = (super * l.blocks() + b) * x.rows + first + t;
            const std::int8_t* codes = x.codes + 32 * at;
            const float xs = x.scales[at];
            const std::int32_t* sums = x.sums + 2 * at;
            const LaneScales& s = scales[b];
            int isum[2] = {0, 0};
            for (int k = 0; k < 32; ++k) isum[k / 16] += values[b][k] * codes[k];
            if constexpr (!l.two_levels() && l.scaled()) {
              acc = std::fma(std::fma(s.of_sub[1], static_cast<float>(isum[1]), s.of_sub[0] * static_cast<float>(isum[0])), xs, acc);
            } else if constexpr (!l.two_levels()) {
              acc = std::fma(s.d, static_cast<float>(isum[0] + isum[1]) * xs, acc);
              if constexpr (l.minima) acc = std::fma(s.min, xs * static_cast<float>(sums[0] + sums[1]), acc);
            } else {
              const int scaled = l.subs == 2 ? s.scale[0] * isum[0] + s.scale[1] * isum[1] : s.scale[0] * (isum[0] + isum[1]);
              inner = std::fma(static_cast<float>(scaled), xs, inner);
              if constexpr (l.minima && l.subs == 2) {
                minima = std::fma(static_cast<float>(s.minimum[0]), xs * static_cast<float>(sums[0]), minima);
                minima = std::fma(static_cast<float>(s.minimum[1]), xs * static_cast<float>(sums[1]), minima);
              } else if constexpr (l.minima) {
                minima = std::fma(static_cast<float>(s.minimum[0]), xs * static_cast<float>(sums[0] + sums[1]), minima);
              }
            }
          }
          if constexpr (l.two_levels()) acc = std::fma(scales[0].d, inner, acc);
          if constexpr (l.two_levels() && l.minima) acc = std::fma(-scales[0].min, minima, acc);
        }
      }
    }
  }
}

void product_fixed_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* blocks = reinterpret_cast<const FixedBlock*>(groups + row / 16 * fixed_group_bytes(cols));
    const int lane = static_cast<int>(row % 16);
    for (std::int64_t t = 0; t < count; ++t) {
      float acc = 0.0f;
      for (std::int64_t b = 0; b < fixed_blocks(cols); ++b) {
        const std::int64_t at = b * x.rows + first + t;
        std::int32_t isum = 0;
        for (int k = 0; k < kFixedBlock; ++k) isum += blocks[b].codes[k / 2][lane][k % 2] * x.codes[at * kFixedBlock + k];
        acc = std::fma(blocks[b].scale[lane], static_cast<float>(isum) * x.scales[at], acc);
      }
      out[t * out_stride + row] = acc;
    }
  }
}

void product_fixed_q8_0_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                               std::int64_t count, float* out, std::int64_t out_stride) {
  constexpr Format F = Format::Q8_0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint8_t* group = groups + row / 16 * group_bytes_of<F>(cols);
    const int lane = static_cast<int>(row % 16);
    for (std::int64_t t = 0; t < count; ++t) {
      float acc = 0.0f;
      for (std::int64_t b = 0; b < cols / 32; ++b) {
        const std::uint8_t* block = group + block_at<F>(b);
        const std::int64_t at = 32 * b / kFixedBlock * x.rows + first + t;
        const std::int16_t* codes = x.codes + at * kFixedBlock + 32 * b % kFixedBlock;
        std::int32_t isum = 0;
        for (int k = 0; k < 32; ++k) isum += stream_value<F>(group, block, lane, k) * codes[k];
        acc = std::fma(lane_scales<F>(group, block, lane).d, static_cast<float>(isum) * x.scales[at], acc);
      }
      out[t * out_stride + row] = acc;
    }
  }
}

// Packs a group of floats as 8-bit codes. For each row of each block, searches for the scale with the smallest sum of squared errors, as
// pack() does for Q8_0 (core/formats_pack.cpp). Sums over a block are computed in four lanes, which total() adds up.
void pack_byte_group(const float* source, std::int64_t rows, std::int64_t cols, std::uint8_t* group) {
  using Lanes = float __attribute__((vector_size(16)));
  constexpr int kVectors = kByteBlock / 4, kSteps = 9;
  constexpr float kMost = 127.0f, kMagic = 12582912.0f;  // kMagic is 1.5 * 2^23: (x + kMagic) - kMagic is x rounded to the nearest integer
  const auto code = [](Lanes x) {
    const Lanes nearest = (x + kMagic) - kMagic, low = nearest > -kMost ? nearest : Lanes{} - kMost;
    return low < kMost ? low : Lanes{} + kMost;
  };
  const auto total = [](Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); };
  auto* blocks = reinterpret_cast<ByteBlock*>(group);
  for (std::int64_t b = 0; b < cols / kByteBlock; ++b) {
    ByteBlock& block = blocks[b];
    for (int row = 0; row < kGroupRows; ++row) {
      Lanes x[kVectors] = {}, most{};
      if (row < rows) __builtin_memcpy(x, source + row * cols + b * kByteBlock, sizeof(x));
      for (const Lanes v : x) {
        const Lanes size = v < 0.0f ? -v : v;
        most = size > most ? size : most;
      }
      float largest = 0, scale = 0, inverse = 0, best = 0;
      for (int i = 0; i < 4; ++i) largest = most[i] > largest ? most[i] : largest;
      // Step 0 tries the scale that maps the largest weight to code 127. Steps 1 to 8 first compute codes with the scales that map the
      // largest weight to 124, 124.5, ..., 127.5. Each of these steps then tries the scale that fits these codes best by least squares.
      for (int step = 0; step < kSteps && largest >= 1e-30f; ++step) {
        const float reach = (step == 0 ? kMost : 123.5f + 0.5f * static_cast<float>(step)) / largest;
        Lanes xq{}, qq{}, error_lanes{};
        for (const Lanes v : x) {
          const Lanes q = code(v * reach);
          xq += v * q;
          qq += q * q;
        }
        const float d = step == 0 ? largest / kMost : total(xq) / total(qq), over = 1.0f / d;
        for (const Lanes v : x) {
          const Lanes rest = v - d * code(v * over);
          error_lanes += rest * rest;
        }
        const float error = total(error_lanes);
        if (step > 0 && !(error < best)) continue;
        scale = d;
        inverse = over;
        best = error;
      }
      block.scale[row] = scale;
      std::int32_t sum = 0, start = 0;
      for (int k = 0; k < kVectors; ++k) {
        const Lanes q = code(x[k] * inverse);
        int codes[4];
        for (int i = 0; i < 4; ++i) {
          codes[i] = static_cast<int>(q[i]);
          block.codes[k][row][i] = static_cast<std::int8_t>(codes[i]);
          sum += codes[i];
        }
        start -= codes[0] * codes[2] + codes[1] * codes[3];
      }
      block.minus_sum[row][0] = static_cast<std::int16_t>(-sum);
      block.minus_sum[row][1] = 0;
      block.start[row] = start;
    }
  }
}

void product_words_scalar(const std::uint8_t* groups, std::int64_t rows, std::int64_t cols, const FixedRows& x, std::int64_t first,
                          std::int64_t count, float* out, std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* blocks = reinterpret_cast<const ByteBlock*>(groups + row / 16 * byte_group_bytes(cols));
    const int lane = static_cast<int>(row % 16);
    for (std::int64_t t = 0; t < count; ++t) {
      float acc = 0.0f;
      for (std::int64_t b = 0; b < cols / kByteBlock; ++b) {
        const std::int64_t at = b * kByteBlock / kFixedBlock * x.rows + first + t;
        const std::int16_t* codes = x.codes + at * kFixedBlock + b * kByteBlock % kFixedBlock;
        std::int32_t isum = 0;
        for (int k = 0; k < kByteBlock; ++k) isum += blocks[b].codes[k / 4][lane][k % 4] * codes[k];
        acc = std::fma(blocks[b].scale[lane], static_cast<float>(isum) * x.scales[b * x.rows + first + t], acc);
      }
      out[t * out_stride + row] = acc;
    }
  }
}

}  // namespace pumice::cpu::matrix

namespace pumice::cpu {
constinit const MatrixKernels kMatrixScalar = {{
#define PUMICE_FORMAT(name, gguf_id, block, bytes, int8) \
  matrix::entry<matrix::Scalar, matrix::Scalar, Format::name>(matrix::product_fixed_q8_0_scalar),
#include "core/formats.def"
#undef PUMICE_FORMAT
                                               },
                                               {matrix::fixed_group_bytes, matrix::pack_fixed_group, matrix::product_fixed_scalar},
                                               {matrix::byte_group_bytes, matrix::pack_byte_group, matrix::product_words_scalar, nullptr}};
}  // namespace pumice::cpu
