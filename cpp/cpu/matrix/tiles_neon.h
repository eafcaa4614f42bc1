// Integer products of a register tile on 64-bit ARM. A register tile is 16 rows of weights by a few tokens. One register has the 32-bit
// sums of 4 / kSumTokens rows and kSumTokens tokens, so a tile has kRowVectors registers for every kSumTokens tokens.
//
// Weights are signed bytes in the order in which products() loads them, with 16 bytes for each column. Activations are signed bytes, with
// kBlock bytes for each token. They are stored token after token if kSumTokens is 1, and pair of tokens after pair of tokens if kSumTokens
// is 2.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

// The bits of the float 1.5 * 2^23. If |n| < 2^22, the bits of 1.5 * 2^23 + n are kSumStart + n. A sum that starts at kSumStart is
// therefore converted to a float by one exact subtraction. The instruction that converts integers (SCVTF) takes twice as long on Neoverse
// N1 and N2.
inline constexpr std::int32_t kSumStart = 0x4B400000;
inline constexpr int32x4_t kSumStarts = {kSumStart, kSumStart, kSumStart, kSumStart}, kZeroStarts = {};
// Loads the start of a register of sums. `volatile` forces one load for each register. Otherwise GCC would load one register and copy it to
// the others. Copies are slower than loads here, because arithmetic instructions, which include copies, limit the speed of a tile.
[[gnu::always_inline]] inline int32x4_t loaded(const int32x4_t& start) { return *const_cast<const volatile int32x4_t*>(&start); }
[[gnu::always_inline]] inline int32x4_t start_sum() { return loaded(kSumStarts); }
[[gnu::always_inline]] inline float32x4_t small_sums(int32x4_t sums) {
  return vsubq_f32(vreinterpretq_f32_s32(sums), vdupq_n_f32(12582912.0f));
}

// Stores the first `lanes` of 16 floats.
inline void store_first(const float* from, std::int64_t lanes, float* to) {
  __builtin_memcpy(to, from, (lanes == 16 ? 16 : static_cast<std::size_t>(lanes)) * sizeof(float));
}

// Computes sums by SDOT, which multiplies four columns of four rows by four columns of one token. Weights are in quads: [quad][row][column
// in the quad].
template <int kBlock>
struct DotTile {
  static constexpr int kTokens = 4;  // number of tokens of the largest tile
  static constexpr int kSumTokens = 1, kRowVectors = 4;
  static constexpr bool kReadsQuads = true;  // products() loads quads, so weights that are stored in quads need not be copied

  // Returns the distance in bytes, in the activations of a token, between two columns that are `columns` apart.
  static constexpr int x_offset(int columns) { return columns; }
  // Stores 16 columns of a token, from `column` on. `x` points to the first token.
  [[gnu::always_inline]] static void store_x(std::int8_t* x, std::int64_t token, int column, int8x16_t codes) {
    vst1q_s8(x + kBlock * token + column, codes);
  }
  template <int kColumns, int P>
  [[gnu::always_inline]] static void products(const std::uint8_t* w, const std::int8_t* x, int32x4_t (&sums)[kRowVectors][P]) {
    for (int k = 0; k < kColumns; k += 16, w += 256) {
      int8x16_t codes[P];
#pragma GCC unroll 4
      for (int n = 0; n < P; ++n) codes[n] = vld1q_s8(x + kBlock * n + k);
      quad<0>(w, codes, sums);
      quad<1>(w, codes, sums);
      quad<2>(w, codes, sums);
      quad<3>(w, codes, sums);
    }
  }

  // Arranges 16 numbers, one per row, in the order in which registers of sums hold the rows.
  template <class T>
  [[gnu::always_inline]] static void of_rows(const T (&rows)[4], T (&out)[kRowVectors]) {
    for (int i = 0; i < 4; ++i) out[i] = rows[i];
  }
  // Returns numbers[p] in all four lanes, because register p of the sums belongs to one token.
  [[gnu::always_inline]] static float32x4_t of_tokens(const float* numbers, int p) { return vdupq_n_f32(numbers[p]); }
  [[gnu::always_inline]] static int32x4_t of_tokens(const std::int32_t* numbers, int p) { return vdupq_n_s32(numbers[p]); }

  // Loads float sums from memory, where each token has sums of 16 rows.
  template <int P>
  [[gnu::always_inline]] static void load_sums(const float (*sums)[16], float32x4_t (&out)[kRowVectors][P]) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) out[i][p] = vld1q_f32(sums[p] + 4 * i);
  }
  template <int P>
  [[gnu::always_inline]] static void store_sums(const float32x4_t (&from)[kRowVectors][P], float (*sums)[16]) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) vst1q_f32(sums[p] + 4 * i, from[i][p]);
  }

 private:
  template <int kQuad, int P>
  [[gnu::always_inline]] static void quad(const std::uint8_t* w, const int8x16_t (&codes)[P], int32x4_t (&sums)[kRowVectors][P]) {
#pragma GCC unroll 4
    for (int i = 0; i < kRowVectors; ++i) {
      const int8x16_t rows = vreinterpretq_s8_u8(vld1q_u8(w + 64 * kQuad + 16 * i));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[i][p] = vdotq_laneq_s32(sums[i][p], rows, codes[p], kQuad);
    }
  }
};

#ifdef __ARM_FEATURE_MATMUL_INT8
// Computes sums by SMMLA, which multiplies eight columns of two rows by eight columns of two tokens. Weights are in octets: [octet][pair of
// rows][row of the pair][column in the octet]. Activations have the same order: [pair of tokens][octet][token of the pair][column].
template <int kBlock>
struct MatrixTile {
  // Number of tokens of the largest tile, which uses 24 registers for sums, 3 for activations and 5 for weights.
  static constexpr int kTokens = 6;
  static constexpr int kSumTokens = 2, kRowVectors = 8;
  static constexpr bool kReadsQuads = false;

  static constexpr int x_offset(int columns) { return 2 * columns; }
  [[gnu::always_inline]] static void store_x(std::int8_t* x, std::int64_t token, int column, int8x16_t codes) {
    std::int8_t* pair = x + 2 * kBlock * (token / 2) + 8 * (token % 2) + 2 * column;
    vst1_s8(pair, vget_low_s8(codes));
    vst1_s8(pair + 16, vget_high_s8(codes));
  }
  // Stores four rows of an octet of weights, rows 4 i to 4 i + 3. quad0 and quad1 are two neighbouring quads of these rows.
  [[gnu::always_inline]] static void store_w(std::uint8_t* w, int i, uint8x16_t quad0, uint8x16_t quad1) {
    const uint32x4_t a = vreinterpretq_u32_u8(quad0), b = vreinterpretq_u32_u8(quad1);
    vst1q_u8(w + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
    vst1q_u8(w + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
  }

  template <int kColumns, int P>
  [[gnu::always_inline]] static void products(const std::uint8_t* w, const std::int8_t* x, int32x4_t (&sums)[kRowVectors][P]) {
    for (int k = 0; k < kColumns; k += 16, w += 256) {
#pragma GCC unroll 2
      for (int octet = 0; octet < 2; ++octet) {
        int8x16_t codes[P];
#pragma GCC unroll 3
        for (int p = 0; p < P; ++p) codes[p] = vld1q_s8(x + 2 * kBlock * p + 2 * k + 16 * octet);
#pragma GCC unroll 8
        for (int i = 0; i < kRowVectors; ++i) {
          const int8x16_t rows = vreinterpretq_s8_u8(vld1q_u8(w + 128 * octet + 16 * i));
#pragma GCC unroll 3
          for (int p = 0; p < P; ++p) sums[i][p] = vmmlaq_s32(sums[i][p], rows, codes[p]);
        }
      }
    }
  }

  [[gnu::always_inline]] static void of_rows(const float32x4_t (&rows)[4], float32x4_t (&out)[kRowVectors]) {
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = vzip1q_f32(rows[i], rows[i]);
      out[2 * i + 1] = vzip2q_f32(rows[i], rows[i]);
    }
  }
  [[gnu::always_inline]] static void of_rows(const int32x4_t (&rows)[4], int32x4_t (&out)[kRowVectors]) {
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = vzip1q_s32(rows[i], rows[i]);
      out[2 * i + 1] = vzip2q_s32(rows[i], rows[i]);
    }
  }
  // Returns the numbers of tokens 2 p and 2 p + 1 alternately, because register p of the sums belongs to these two tokens.
  [[gnu::always_inline]] static float32x4_t of_tokens(const float* numbers, int p) {
    const float32x2_t two = vld1_f32(numbers + 2 * p);
    return vcombine_f32(two, two);
  }
  [[gnu::always_inline]] static int32x4_t of_tokens(const std::int32_t* numbers, int p) {
    const int32x2_t two = vld1_s32(numbers + 2 * p);
    return vcombine_s32(two, two);
  }

  template <int P>
  [[gnu::always_inline]] static void load_sums(const float (*sums)[16], float32x4_t (&out)[kRowVectors][P]) {
#pragma GCC unroll 3
    for (int p = 0; p < P; ++p) {
      for (int i = 0; i < 4; ++i) {
        const float32x4_t a = vld1q_f32(sums[2 * p] + 4 * i), b = vld1q_f32(sums[2 * p + 1] + 4 * i);
        out[2 * i][p] = vzip1q_f32(a, b);
        out[2 * i + 1][p] = vzip2q_f32(a, b);
      }
    }
  }
  template <int P>
  [[gnu::always_inline]] static void store_sums(const float32x4_t (&from)[kRowVectors][P], float (*sums)[16]) {
#pragma GCC unroll 3
    for (int p = 0; p < P; ++p) {
      for (int i = 0; i < 4; ++i) {
        vst1q_f32(sums[2 * p] + 4 * i, vuzp1q_f32(from[2 * i][p], from[2 * i + 1][p]));
        vst1q_f32(sums[2 * p + 1] + 4 * i, vuzp2q_f32(from[2 * i][p], from[2 * i + 1][p]));
      }
    }
  }
};
#endif

}  // namespace
}  // namespace pumice::cpu::matrix
