// The vectors of AVX-512 (BW, DQ, VL, VNNI). Vectors512 in simd512.h describes the operations. The operations are always inlined. Otherwise
// object files would define weak symbols for them, and machines without AVX-512 could run that code. tests/cpp/cpu/isa_symbols.cmake looks
// for such symbols.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/matrix/simd512.h"

#define PUMICE_OPERATION [[gnu::always_inline]] static

namespace pumice::cpu::matrix {

struct Native512 {
  using Ints = __m512i;
  using Floats = __m512;
  using Quads = const std::uint8_t*;
  static constexpr TileSizes kSizes{.groups = 2, .tokens = 6, .tokens_two_subs = 4, .few_tokens = 8, .float_tokens = 12};

  PUMICE_OPERATION Ints load(const void* p) { return _mm512_loadu_si512(p); }
  PUMICE_OPERATION void save(void* p, Ints v) { _mm512_storeu_si512(p, v); }
  PUMICE_OPERATION Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
  PUMICE_OPERATION void save_floats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  PUMICE_OPERATION __mmask16 first(std::int64_t lanes) { return static_cast<__mmask16>((1u << lanes) - 1); }
  PUMICE_OPERATION Floats load_first(const float* p, std::int64_t lanes) { return _mm512_maskz_loadu_ps(first(lanes), p); }
  PUMICE_OPERATION void save_first(float* p, Floats v, std::int64_t lanes) { _mm512_mask_storeu_ps(p, first(lanes), v); }
  PUMICE_OPERATION void load_pairs(const std::int32_t* p, std::int64_t count, Ints (&out)[2]) {
    const std::uint32_t mask = static_cast<std::uint32_t>((std::uint64_t{1} << (2 * count)) - 1);
    const Ints low = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), p);
    const Ints high = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask >> 16), p + 16);
    even_odd_dwords(low, high, out);
  }
  PUMICE_OPERATION Ints load_as_quads(const void* p) {
    const Ints in_order = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm512_shuffle_epi8(
        in_order, _mm512_setr_epi32(0x00000000, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707,
                                    0x08080808, 0x09090909, 0x0a0a0a0a, 0x0b0b0b0b, 0x0c0c0c0c, 0x0d0d0d0d, 0x0e0e0e0e, 0x0f0f0f0f));
  }
  PUMICE_OPERATION void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  PUMICE_OPERATION void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  PUMICE_OPERATION Ints broadcast4(const void* p) {
    int dword;
    __builtin_memcpy(&dword, p, 4);
    return _mm512_set1_epi32(dword);
  }
  // Uses vpbroadcastd, because on Zen 4 vbroadcastss to 512 bits takes twice as long.
  PUMICE_OPERATION Floats broadcast_float(const float* p) { return _mm512_castsi512_ps(broadcast4(p)); }
  PUMICE_OPERATION Ints splat(std::int32_t v) { return _mm512_set1_epi32(v); }
  PUMICE_OPERATION Ints splat_bytes(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
  PUMICE_OPERATION Floats splat(float v) { return _mm512_set1_ps(v); }
  PUMICE_OPERATION Floats zero_floats() { return _mm512_setzero_ps(); }

  PUMICE_OPERATION Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
  PUMICE_OPERATION Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
  PUMICE_OPERATION Ints bit_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
  template <int kFrom, int kCount, int kTo>
  PUMICE_OPERATION Ints bits(Ints v) {
    if constexpr (kTo > kFrom) v = _mm512_slli_epi16(v, kTo - kFrom);
    if constexpr (kTo < kFrom) v = _mm512_srli_epi16(v, kFrom - kTo);
    return bit_and(v, splat_bytes(((1 << kCount) - 1) << kTo));
  }
  PUMICE_OPERATION Ints add_dwords(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  PUMICE_OPERATION Ints multiply_dwords(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
  PUMICE_OPERATION Ints add_bytes(Ints a, Ints b) { return _mm512_add_epi8(a, b); }
  PUMICE_OPERATION Ints subtract_bytes(Ints a, Ints b) { return _mm512_sub_epi8(a, b); }
  template <int kByte>
  PUMICE_OPERATION Ints signed_byte(Ints v) {
    return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * kByte), 24);
  }
  PUMICE_OPERATION Ints look_up(const std::int8_t (&table)[16], int add, Ints codes) {
    const Ints all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return _mm512_shuffle_epi8(_mm512_add_epi8(all, splat_bytes(add)), codes);
  }
  PUMICE_OPERATION Ints pair_words(Ints v) {
    const Ints low = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005, 0x00160006, 0x00170007,
                                       0x00180008, 0x00190009, 0x001a000a, 0x001b000b, 0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return _mm512_permutexvar_epi16(low, v);
  }
  // widen_quads() takes four instructions. A version with shifts and blends took ten.
  PUMICE_OPERATION void widen_quads(const void* p, Ints (&out)[2]) {
    const auto* halves = static_cast<const __m256i*>(p);
    const Ints low = _mm512_cvtepi8_epi16(_mm256_loadu_si256(halves)), high = _mm512_cvtepi8_epi16(_mm256_loadu_si256(halves + 1));
    even_odd_dwords(low, high, out);
  }
  // vpdpbusd adds in 32 bits and does not saturate, as WordVectors512 requires.
  PUMICE_OPERATION Ints dot_bytes(Ints sums, Ints unsigned_bytes, Ints signed_bytes) {
    return _mm512_dpbusd_epi32(sums, unsigned_bytes, signed_bytes);
  }
  PUMICE_OPERATION Ints dot_words(Ints sums, Ints a, Ints b) { return _mm512_dpwssd_epi32(sums, a, b); }

  static constexpr bool kSignedCodes = false;
  PUMICE_OPERATION Quads load_quads(const void* p) { return static_cast<const std::uint8_t*>(p); }
  template <int kQuad>
  PUMICE_OPERATION Ints quad(Quads p) {
    return broadcast4(p + 4 * kQuad);
  }
  PUMICE_OPERATION Ints dot_codes(Ints sums, Ints codes, Ints quad) { return dot_bytes(sums, codes, quad); }
  static constexpr std::int32_t kStart = 0;
  PUMICE_OPERATION Ints start_sums() { return splat(kStart); }
  PUMICE_OPERATION Floats sums_to_floats(Ints sums) { return to_floats(sums); }
  PUMICE_OPERATION void to_memory(Floats&) {}

  PUMICE_OPERATION Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  PUMICE_OPERATION Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  PUMICE_OPERATION Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  PUMICE_OPERATION Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  PUMICE_OPERATION Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  PUMICE_OPERATION Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

  PUMICE_OPERATION Ints load_unsigned_bytes(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  template <int kFrom, int kCount>
  PUMICE_OPERATION Floats load_bits(const void* p) {
    Ints v = load_unsigned_bytes(p);
    if constexpr (kFrom > 0) v = _mm512_srli_epi32(v, kFrom);
    if constexpr (kFrom + kCount < 8) v = bit_and(v, splat((1 << kCount) - 1));
    return to_floats(v);
  }
  PUMICE_OPERATION Floats load_signed_bytes(const void* p) {
    return to_floats(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  PUMICE_OPERATION Floats load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  PUMICE_OPERATION Floats load_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }
  // Shifts the bits of F8_E4M3 codes to the bits of floats, like four_columns() of isa/matrix_float_avx2.cpp. The first line computes the
  // same vector for bytes 0 and 2, and the same for bytes 1 and 3, so the compiler computes only two vectors for all four bytes.
  template <int kByte>
  PUMICE_OPERATION Floats e4m3(Ints codes) {
    Ints words = kByte % 2 == 0 ? _mm512_maddubs_epi16(_mm512_set1_epi16(16), codes) : _mm512_srai_epi16(codes, 4);
    if constexpr (kByte < 2) words = _mm512_slli_epi32(words, 16);
    return _mm512_castsi512_ps(bit_and(words, splat(static_cast<std::int32_t>(0x87f00000))));
  }
  PUMICE_OPERATION Floats load_half_exponents(const void* p) {
    const Ints e = load_unsigned_bytes(p);
    const Ints normal = _mm512_slli_epi32(_mm512_sub_epi32(e, splat(1)), 23), tiny = _mm512_sllv_epi32(splat(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epu32_mask(e, splat(2)), normal, tiny));
  }

 private:
  // Writes the dwords of `low` and `high` with even indices to out[0], and those with odd indices to out[1].
  PUMICE_OPERATION void even_odd_dwords(Ints low, Ints high, Ints (&out)[2]) {
    const Ints even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    out[0] = _mm512_permutex2var_epi32(low, even, high);
    out[1] = _mm512_permutex2var_epi32(low, _mm512_add_epi32(even, splat(1)), high);
  }
};
static_assert(WordVectors512<Native512>);

// The BF16 operations have their own type, so that Native512 is the same type in files compiled with and without AVX-512 BF16.
#ifdef __AVX512BF16__
struct Native512Bf16 : Native512 {
  PUMICE_OPERATION Floats dot_bf16(Floats sums, Ints a, Ints b) {
    return _mm512_dpbf16_ps(sums, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
  }
  PUMICE_OPERATION void save_bf16(void* p, Floats v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(v)));
  }
};
static_assert(Bf16Vectors512<Native512Bf16>);
#endif

}  // namespace pumice::cpu::matrix

#undef PUMICE_OPERATION
