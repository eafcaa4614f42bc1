// Plain loops over one group. The scalar kernels use these functions, and other instruction sets use them where speed does not matter.
#pragma once

#include "cpu/matrix/layout.h"

namespace pumice::cpu::matrix {
namespace {

inline std::uint16_t load16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }

// Returns 2^(e - 128), which is half of the scale 2^(e - 127) that the OCP specification defines. Half is correct because kE2m1Values are
// doubled. For e < 2 the result is subnormal.
inline float half_exponent(std::uint8_t e) {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23;
  return __builtin_bit_cast(float, bits);
}

// ---------------------------------------------------------------- reading a block of the file
// Returns the code of column i in block b (32 columns) of a file block.
template <Format F>
int file_code(const std::uint8_t* block, int b, int i) {
  using T = Traits<F>;
  constexpr Layout l = T::layout;
  int code;
  if constexpr (T::halves)
    code = block[T::low_at(b) + i % 16] >> (i / 16 * 4);
  else
    code = block[T::low_at(b) + i] >> T::low_shift(b);
  code &= (1 << l.low) - 1;
  if constexpr (l.high > 0) {
    int high;
    if constexpr (T::high_word)
      high = block[T::high_at(b) + i / 8] >> (i % 8);
    else
      high = block[T::high_at(b) + i] >> T::high_shift(b);
    code |= (high & ((1 << l.high) - 1)) << l.low;
  }
  return code;
}

// ---------------------------------------------------------------- reading a block of a group
// A plane stores kBits bits of each weight and begins at `plane`. plane_byte() returns the address of the byte that contains the bits of
// weight (lane, k). plane_shift() returns the position in that byte of the lowest of these bits.
template <int kBits>
const std::uint8_t* plane_byte(const std::uint8_t* plane, int lane, int k) {
  return plane + 64 * (k / 4 * kBits / 8) + 4 * lane + k % 4;
}
template <int kBits>
constexpr int plane_shift(int k) {
  return k / 4 * kBits % 8;
}

// Returns the integer value of weight (lane, k) of a block, before it is multiplied by scales. `head` is the head of the block's
// super-block.
template <Format F>
int stream_value(const std::uint8_t* head, const std::uint8_t* block, int lane, int k) {
  constexpr Layout l = Traits<F>::layout;
  int code = *plane_byte<l.low>(block + l.low_at(), lane, k) >> plane_shift<l.low>(k) & ((1 << l.low) - 1);
  if constexpr (l.high > 0)
    code |= (*plane_byte<l.high>(block + l.high_at(), lane, k) >> plane_shift<l.high>(k) & ((1 << l.high) - 1)) << l.low;
  if constexpr (l.low == 8) return static_cast<std::int8_t>(code);
  if constexpr (l.table != Table::none) return values_of(l.table)[code];
  if constexpr (l.lifted) code += head[32 + lane];
  return code - l.offset;
}

// The scales of one row in one block, with the names in the formulas of layout.h.
struct LaneScales {
  float d = 0, min = 0;   // one level: d and m; two levels: d and dmin
  float of_sub[2] = {};   // one level with two sub-blocks: d0 and d1
  int scale[2] = {1, 1};  // two levels: integer scales of the sub-blocks
  int minimum[2] = {0, 0};
};

template <Format F>
LaneScales lane_scales(const std::uint8_t* head, const std::uint8_t* block, int lane) {
  constexpr Layout l = Traits<F>::layout;
  LaneScales s;
  if constexpr (!l.two_levels() && l.scaled()) {
    for (int sub = 0; sub < 2; ++sub) __builtin_memcpy(&s.of_sub[sub], block + 64 * sub + 4 * lane, 4);
  } else if constexpr (l.field_bytes == 2) {
    s.d = f16_to_f32(load16((l.lifted ? head : block) + 2 * lane));
    if constexpr (l.minima) s.min = f16_to_f32(load16(block + 32 + 2 * lane));
  } else if constexpr (!l.two_levels()) {
    s.d = half_exponent(block[lane]);
  } else {
    s.d = l.unit * f16_to_f32(load16(head + 2 * lane));
    if constexpr (l.minima) s.min = f16_to_f32(load16(head + 32 + 2 * lane));
    for (int sub = 0; sub < l.subs; ++sub) {
      if constexpr (l.minima && l.subs == 2) {
        s.scale[sub] = block[16 * sub + lane] & 15;
        s.minimum[sub] = block[16 * sub + lane] >> 4;
      } else if constexpr (l.minima) {
        s.scale[sub] = block[lane];
        s.minimum[sub] = block[16 + lane];
      } else {
        s.scale[sub] = static_cast<std::int8_t>(block[16 * sub + lane]);
      }
    }
  }
  return s;
}

// Writes the 32 weights of row `lane` in block b to `out`, as floats.
template <Format F>
void unpack_block(const std::uint8_t* group, std::int64_t b, int lane, float* out) {
  constexpr Layout l = Traits<F>::layout;
  const std::uint8_t* block = group + block_at<F>(b);
  const std::uint8_t* head = group + b / l.blocks() * l.super_bytes();
  const LaneScales s = lane_scales<F>(head, block, lane);
  for (int k = 0; k < 32; ++k) {
    const int sub = l.subs == 2 ? k / 16 : 0;
    const float value = static_cast<float>(stream_value<F>(head, block, lane, k));
    if constexpr (!l.two_levels() && l.scaled())
      out[k] = s.of_sub[sub] * value;
    else if constexpr (!l.two_levels() && l.minima)
      out[k] = s.d * value + s.min;
    else if constexpr (!l.two_levels())
      out[k] = s.d * value;
    else if constexpr (l.minima)
      out[k] = s.d * static_cast<float>(s.scale[sub]) * value - s.min * static_cast<float>(s.minimum[sub]);
    else
      out[k] = s.d * static_cast<float>(s.scale[sub]) * value;
  }
}

template <Format F>
void unpack_row_plain(const std::uint8_t* group, int lane, std::int64_t cols, float* out) {
  for (std::int64_t b = 0; b < cols / 32; ++b) unpack_block<F>(group, b, lane, out + 32 * b);
}

template <Format F>
constexpr std::int64_t group_bytes_of(std::int64_t cols) {
  if constexpr (info(F).quantized)
    return align64(cols / Traits<F>::layout.super * Traits<F>::layout.super_bytes());
  else if constexpr (F == Format::F8_E4M3)
    return run_at(cols);
  else
    return align64(cols * 16 * static_cast<std::int64_t>(sizeof(typename Traits<F>::Word)));
}

// ---------------------------------------------------------------- packing
inline constexpr std::uint8_t kZeroBlock[kMaxFileBlock] = {};

// The file blocks of up to 16 rows. If there is no row for a lane, block() returns a block of zeros.
struct SourceRows {
  const std::uint8_t* source;
  std::int64_t row_stride, rows;
  const std::uint8_t* block(int lane, std::int64_t at) const { return lane < rows ? source + lane * row_stride + at : kZeroBlock; }
};

// Writes the head and the scale fields of one super-block to `stream`. blocks[lane] is the file block of row `lane`.
template <Format F>
void pack_scales(const std::uint8_t* const (&blocks)[16], std::uint8_t* stream) {
  using T = Traits<F>;
  constexpr Layout l = T::layout;
  for (int lane = 0; lane < 16; ++lane) {
    const std::uint8_t* block = blocks[lane];
    if constexpr (l.two_levels()) {
      for (int f = 0; f < (l.minima ? 2 : 1); ++f) __builtin_memcpy(stream + 32 * f + 2 * lane, block + T::head_at[f], 2);
      std::uint8_t fields[8][2];
      T::fields(block, fields);
      for (int b = 0; b < 8; ++b)
        for (int f = 0; f < l.fields; ++f) stream[block_at<F>(b) + 16 * f + lane] = fields[b][f];
    } else if constexpr (l.lifted) {
      __builtin_memcpy(stream + 2 * lane, block + T::field_at, 2);
      stream[32 + lane] = static_cast<std::uint8_t>(l.offset - (block[T::zero_at] & 15));
    } else {
      for (int f = 0; f < l.fields; ++f)
        __builtin_memcpy(stream + (16 * f + lane) * l.field_bytes, block + T::field_at + f * l.field_bytes, l.field_bytes);
    }
  }
}

// Packs up to 16 rows into a group. The function pack_codes(blocks, b, stream) must write the planes of block b (32 columns) to `stream`;
// blocks[lane] is the file block of row `lane`.
template <Format F, class PackCodes>
void pack_group_with(const SourceRows& rows, std::int64_t cols, std::uint8_t* group, PackCodes pack_codes) {
  constexpr Layout l = Traits<F>::layout;
  const std::int64_t supers = cols / l.super;
  for (std::int64_t s = 0; s < supers; ++s) {
    const std::uint8_t* blocks[16];
    for (int lane = 0; lane < 16; ++lane) blocks[lane] = rows.block(lane, s * info(F).block_bytes);
    std::uint8_t* stream = group + s * l.super_bytes();
    pack_scales<F>(blocks, stream);
    for (int b = 0; b < l.blocks(); ++b) pack_codes(blocks, b, stream + block_at<F>(b));
  }
  const std::int64_t end = supers * l.super_bytes();
  __builtin_memset(group + end, 0, static_cast<std::size_t>(align64(end) - end));
}

template <class Word>
void pack_words(const SourceRows& rows, std::int64_t cols, std::uint8_t* group) {
  constexpr std::int64_t kWord = sizeof(Word);
  for (int lane = 0; lane < 16; ++lane)
    for (std::int64_t k = 0; k < cols; ++k)
      __builtin_memcpy(group + (16 * k + lane) * kWord, rows.block(lane, 0) + (lane < rows.rows ? k * kWord : 0), kWord);
  const std::int64_t end = cols * 16 * kWord;
  __builtin_memset(group + end, 0, static_cast<std::size_t>(align64(end) - end));
}

// ---------------------------------------------------------------- F8_E4M3
inline void pack_runs(const SourceRows& rows, std::int64_t cols, std::uint8_t* group) {
  constexpr Format F = Format::F8_E4M3;
  for (std::int64_t k = 0; k < cols; k += Traits<F>::run) {
    const std::uint8_t* codes[16];
    for (int lane = 0; lane < 16; ++lane) {
      const std::uint8_t* block = rows.block(lane, k / Traits<F>::run * info(F).block_bytes);
      float scale;
      __builtin_memcpy(&scale, block, sizeof scale);
      scale *= 1 / kSumUnit;
      __builtin_memcpy(group + run_at(k) + 4 * lane, &scale, sizeof scale);
      codes[lane] = block + sizeof scale;
    }
    for (std::int64_t i = 0; i < Traits<F>::run; i += 4)
      for (int lane = 0; lane < 16; ++lane) __builtin_memcpy(group + plane_at(k + i) + 4 * lane, codes[lane] + i, 4);
  }
}

// run_scale() returns scale * 2^60 of row `lane` for the run of column k. run_code() returns the code of the weight in column k.
inline float run_scale(const std::uint8_t* group, int lane, std::int64_t k) {
  float scale;
  __builtin_memcpy(&scale, group + run_at(k) + 4 * lane, sizeof scale);
  return scale;
}
inline std::uint8_t run_code(const std::uint8_t* group, int lane, std::int64_t k) { return group[plane_at(k) + 4 * lane + k % 4]; }

inline void unpack_runs(const std::uint8_t* group, int lane, std::int64_t cols, float* out) {
  for (std::int64_t k = 0; k < cols; ++k) out[k] = run_scale(group, lane, k) * kSumUnit * e4m3_value(run_code(group, lane, k));
}

}  // namespace
}  // namespace pumice::cpu::matrix
