// The innermost code of integer products on AVX2. A step multiplies one dword of each of 16 rows of weights (two vectors) by one dword of
// each of four tokens, broadcast to all lanes, and adds the products to eight vectors of sums. Each piece of assembly runs four steps. The
// weights of successive steps are 64 bytes apart. The code is assembly, because gcc would rearrange the additions and then spill registers,
// which reduces the speed from 39 to 24 multiply-adds per cycle.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

inline constexpr int kFourTokens = 4;
using TileSums = __m256i[kFourTokens][2];

// clang-format off
#define PUMICE_TOKEN(MUL, ADD, S, STEP, N, A, B)                      \
  "vpbroadcastd " #N "*" #S "+4*" #STEP "(%[x]), %[xn]\n\t"          \
  MUL " %[xn], %[w0], %[t0]\n\t"                                      \
  MUL " %[xn], %[w1], %[t1]\n\t"                                      \
  ADD " %[t0], %[" #A "], %[" #A "]\n\t"                              \
  ADD " %[t1], %[" #B "], %[" #B "]\n\t"
#define PUMICE_TOKEN_FIRST(MUL, ADD, S, STEP, N, A, B)                \
  "vpbroadcastd " #N "*" #S "+4*" #STEP "(%[x]), %[xn]\n\t"          \
  MUL " %[xn], %[w0], %[" #A "]\n\t"                                  \
  MUL " %[xn], %[w1], %[" #B "]\n\t"
#define PUMICE_STEP(TOKEN, MUL, ADD, S, STEP)                         \
  "vmovdqu 64*" #STEP "(%[w]), %[w0]\n\t"                             \
  "vmovdqu 64*" #STEP "+32(%[w]), %[w1]\n\t"                          \
  TOKEN(MUL, ADD, S, STEP, 0, a0, b0)                                 \
  TOKEN(MUL, ADD, S, STEP, 1, a1, b1)                                 \
  TOKEN(MUL, ADD, S, STEP, 2, a2, b2)                                 \
  TOKEN(MUL, ADD, S, STEP, 3, a3, b3)
#define PUMICE_FOUR_STEPS(FIRST, MUL, ADD, S)                                                      \
  PUMICE_STEP(FIRST, MUL, ADD, S, 0) PUMICE_STEP(PUMICE_TOKEN, MUL, ADD, S, 1)                     \
  PUMICE_STEP(PUMICE_TOKEN, MUL, ADD, S, 2) PUMICE_STEP(PUMICE_TOKEN, MUL, ADD, S, 3)
#define PUMICE_SUMS(MODE)                                                                          \
  [a0] MODE(a[0][0]), [b0] MODE(a[0][1]), [a1] MODE(a[1][0]), [b1] MODE(a[1][1]), [a2] MODE(a[2][0]), [b2] MODE(a[2][1]), \
      [a3] MODE(a[3][0]), [b3] MODE(a[3][1])
#define PUMICE_ACCUMULATORS(MODE)                                                                  \
  PUMICE_SUMS(MODE), [w0] "=&x"(w0), [w1] "=&x"(w1), [xn] "=&x"(xn), [t0] "=&x"(t0), [t1] "=&x"(t1)
// The assembly reads memory through the pointers w and x, so "memory" is among its clobbers.
#define PUMICE_FOUR(FIRST, MODE, MUL, ADD, S)                                                                                     \
  {                                                                                                                               \
    __m256i w0, w1, xn, t0, t1;                                                                                                   \
    asm(PUMICE_FOUR_STEPS(FIRST, MUL, ADD, S) : PUMICE_ACCUMULATORS(MODE) : [w] "r"(w), [x] "r"(x) : "memory");                   \
  }
// clang-format on

// Both functions multiply 16 columns of 8-bit codes and add the products in 16 bits. The activations of successive tokens are 32 bytes
// apart. four_quads_first() overwrites the sums `a`, and four_quads() adds to them.
inline void four_quads_first(const std::uint8_t* w, const std::uint8_t* x, TileSums& a) {
  PUMICE_FOUR(PUMICE_TOKEN_FIRST, "=&x", "vpmaddubsw", "vpaddw", 32)
}
inline void four_quads(const std::uint8_t* w, const std::uint8_t* x, TileSums& a) {
  PUMICE_FOUR(PUMICE_TOKEN, "+&x", "vpmaddubsw", "vpaddw", 32)
}
// Both functions multiply 8 columns of 16-bit codes and add the products in 32 bits. The activations of successive tokens are 64 bytes
// apart. four_pairs_first() overwrites the sums `a`, and four_pairs() adds to them.
inline void four_pairs_first(const std::uint8_t* w, const std::uint8_t* x, TileSums& a) {
  PUMICE_FOUR(PUMICE_TOKEN_FIRST, "=&x", "vpmaddwd", "vpaddd", 64)
}
inline void four_pairs(const std::uint8_t* w, const std::uint8_t* x, TileSums& a) {
  PUMICE_FOUR(PUMICE_TOKEN, "+&x", "vpmaddwd", "vpaddd", 64)
}
// Multiplies 8 * fours columns of 16-bit codes and overwrites the sums `a`. The activations of successive tokens are 128 bytes apart. The
// loop is not unrolled, because its code would then not fit in the processor's cache of decoded instructions, and the speed would fall from
// 22.5 to 21 products per cycle.
inline void wide_pairs(const std::uint8_t* w, const std::uint8_t* x, int fours, TileSums& a) {
  __m256i w0, w1, xn, t0, t1;
  for (auto& token : a) token[0] = token[1] = _mm256_setzero_si256();
  asm(".p2align 6\n"
      "1:\n\t" PUMICE_FOUR_STEPS(PUMICE_TOKEN, "vpmaddwd", "vpaddd", 128)
      "add $256, %[w]\n\t"
      "add $16, %[x]\n\t"
      "dec %[fours]\n\t"
      "jnz 1b\n"
      : PUMICE_ACCUMULATORS("+&x"), [w] "+&r"(w), [x] "+&r"(x), [fours] "+&r"(fours)
      :
      : "memory", "cc");
}
// These macros multiply four columns of 16-bit codes by Winograd's inner product (fixed.h), for 16 rows and four tokens. The activations of
// successive tokens are 128 bytes apart. Registers u01 and u23 hold columns 0-1 and 2-3 of rows 0-7. Registers v01 and v23 hold the same
// columns of rows 8-15.
// clang-format off
#define PUMICE_CROSSED_TOKEN(STEP, N, A, B)                           \
  "vpbroadcastd " #N "*128+8*" #STEP "(%[x]), %[x01]\n\t"            \
  "vpbroadcastd " #N "*128+8*" #STEP "+4(%[x]), %[x23]\n\t"          \
  "vpaddw %[x01], %[u23], %[t0]\n\t"                                 \
  "vpaddw %[x23], %[u01], %[t1]\n\t"                                 \
  "vpaddw %[x01], %[v23], %[x01]\n\t"                                \
  "vpaddw %[x23], %[v01], %[x23]\n\t"                                \
  "vpmaddwd %[t0], %[t1], %[t0]\n\t"                                 \
  "vpmaddwd %[x01], %[x23], %[x01]\n\t"                              \
  "vpaddd %[t0], %[" #A "], %[" #A "]\n\t"                           \
  "vpaddd %[x01], %[" #B "], %[" #B "]\n\t"
#define PUMICE_CROSSED_FOUR(STEP)                                     \
  "vmovdqu 128*" #STEP "(%[w]), %[u01]\n\t"                          \
  "vmovdqu 128*" #STEP "+32(%[w]), %[v01]\n\t"                       \
  "vmovdqu 128*" #STEP "+64(%[w]), %[u23]\n\t"                       \
  "vmovdqu 128*" #STEP "+96(%[w]), %[v23]\n\t"                       \
  PUMICE_CROSSED_TOKEN(STEP, 0, a0, b0) PUMICE_CROSSED_TOKEN(STEP, 1, a1, b1) \
  PUMICE_CROSSED_TOKEN(STEP, 2, a2, b2) PUMICE_CROSSED_TOKEN(STEP, 3, a3, b3)
// clang-format on
// Multiplies 8 * pairs columns by Winograd's inner product and adds the products to the sums `a`.
inline void crossed_fours(const std::uint8_t* w, const std::uint8_t* x, int pairs, TileSums& a) {
  __m256i u01, v01, u23, v23, x01, x23, t0, t1;
  asm(".p2align 6\n"
      "1:\n\t" PUMICE_CROSSED_FOUR(0) PUMICE_CROSSED_FOUR(1)
      "add $256, %[w]\n\t"
      "add $16, %[x]\n\t"
      "dec %[pairs]\n\t"
      "jnz 1b\n"
      : PUMICE_SUMS("+&x"), [u01] "=&x"(u01), [v01] "=&x"(v01), [u23] "=&x"(u23), [v23] "=&x"(v23), [x01] "=&x"(x01), [x23] "=&x"(x23),
        [t0] "=&x"(t0), [t1] "=&x"(t1), [w] "+&r"(w), [x] "+&r"(x), [pairs] "+&r"(pairs)
      :
      : "memory", "cc");
}
#undef PUMICE_CROSSED_FOUR
#undef PUMICE_CROSSED_TOKEN
#undef PUMICE_FOUR
#undef PUMICE_ACCUMULATORS
#undef PUMICE_SUMS
#undef PUMICE_FOUR_STEPS
#undef PUMICE_STEP
#undef PUMICE_TOKEN_FIRST
#undef PUMICE_TOKEN

}  // namespace
}  // namespace pumice::cpu::matrix
