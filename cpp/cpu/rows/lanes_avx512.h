// Sixteen float lanes in one AVX-512 register. The results have the same bits as those of the other implementations of lanes.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {
namespace avx512 {

struct Bits {
  __m512i v;
};
struct Mask {
  __mmask16 m;
};

struct Lanes {
  using Bits = avx512::Bits;
  using Mask = avx512::Mask;
  // Number of vectors of 16 sums that a product keeps in registers. Eight independent chains of multiply-adds hide their latency if two
  // multiply-adds start in each cycle. More chains would not be faster, although the 32 registers have room for them.
  static constexpr int kAccumulators = 8;
  static constexpr bool kRegisters = true;
  __m512 v;

  PUMICE_INLINE static Lanes set(float x) { return {_mm512_set1_ps(x)}; }
  PUMICE_INLINE static Bits set_bits(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  PUMICE_INLINE static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  PUMICE_INLINE static Lanes load(const std::uint16_t* p) {  // loads IEEE half floats
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  PUMICE_INLINE static Lanes load(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  // Returns the mask of the lanes with first <= index < last.
  PUMICE_INLINE static Mask between(int first, int last) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)), lane, _mm512_set1_epi32(last))};
  }
  PUMICE_INLINE static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

PUMICE_INLINE void store(float* p, Lanes x) { _mm512_storeu_ps(p, x.v); }
PUMICE_INLINE void store(std::uint16_t* p, Lanes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
PUMICE_INLINE void store(std::int8_t* p, Bits x) {  // stores integers within [-128, 127]
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x.v));
}

// Both functions return the upper half of a register. sum() and max_lane() use it to combine lanes in the order that lanes.h requires: lane
// i with lane i + 8, then with lane i + 4, i + 2 and i + 1.
PUMICE_INLINE __m256 upper(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }
PUMICE_INLINE __m256i upper(__m512i x) { return _mm512_extracti32x8_epi32(x, 1); }

PUMICE_INLINE std::int32_t sum_of(__m512i x) {
  const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(x), upper(x));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0x55)));
}
// Stores 32 integers within [-128, 127], and writes the sums of the first 16 and of the last 16 integers to `sums`.
PUMICE_INLINE void store_codes(std::int8_t* p, Bits a, Bits b, std::int32_t* sums) {
  store(p, a);
  store(p + kLanes, b);
  sums[0] = sum_of(a.v);
  sums[1] = sum_of(b.v);
}
// Stores 32 integers within [-8191, 8191]. Returns the sum of c0 c2 + c1 c3 over all sets (c0, c1, c2, c3) of four neighbouring integers.
PUMICE_INLINE std::int32_t store_codes(std::int16_t* p, Bits a, Bits b) {
  const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(a.v)), _mm512_cvtsepi32_epi16(b.v), 1);
  _mm512_storeu_si512(p, codes);
  // In `crossed`, each sum c0 c2 + c1 c3 is in two lanes, so the code below adds up every second lane only.
  const __m512i crossed = _mm512_madd_epi16(codes, _mm512_shuffle_epi32(codes, _MM_PERM_CDAB));
  return sum_of(_mm512_maskz_mov_epi32(0x5555, crossed));
}

PUMICE_INLINE void store_bytes(std::uint8_t* p, Bits a, Bits b) {  // stores 32 integers within [0, 255]
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + kLanes), _mm512_cvtepi32_epi8(b.v));
}

PUMICE_INLINE Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
PUMICE_INLINE Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
PUMICE_INLINE Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
PUMICE_INLINE Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
PUMICE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PUMICE_INLINE Lanes fnma(Lanes a, Lanes b, Lanes c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
PUMICE_INLINE Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
PUMICE_INLINE Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }

PUMICE_INLINE Bits bits(Lanes x) { return {_mm512_castps_si512(x.v)}; }
PUMICE_INLINE Lanes floats(Bits x) { return {_mm512_castsi512_ps(x.v)}; }
PUMICE_INLINE Bits operator+(Bits a, Bits b) { return {_mm512_add_epi32(a.v, b.v)}; }
PUMICE_INLINE Bits operator-(Bits a, Bits b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PUMICE_INLINE Bits operator&(Bits a, Bits b) { return {_mm512_and_si512(a.v, b.v)}; }
PUMICE_INLINE Bits operator|(Bits a, Bits b) { return {_mm512_or_si512(a.v, b.v)}; }
PUMICE_INLINE Bits max(Bits a, Bits b) { return {_mm512_max_epi32(a.v, b.v)}; }  // compares signed integers
template <int N>
PUMICE_INLINE Bits shift_left(Bits a) {
  return {_mm512_slli_epi32(a.v, N)};
}

PUMICE_INLINE Mask less(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PUMICE_INLINE Mask is_nan(Lanes a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
PUMICE_INLINE bool any(Mask m) { return m.m != 0; }
PUMICE_INLINE Lanes select(Mask m, Lanes yes, Lanes no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }

PUMICE_INLINE float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), upper(x.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PUMICE_INLINE float max_lane(Lanes x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), upper(x.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
PUMICE_INLINE std::int32_t max_lane(Bits x) {
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(x.v), upper(x.v));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0x55)));
}
PUMICE_INLINE float first_lane(Lanes x) { return _mm512_cvtss_f32(x.v); }

// Loads 32 floats, those with even indices into `even` and those with odd indices into `odd`. store_pairs() is the inverse. In the
// permutations, indices above 15 select elements of the second register.
PUMICE_INLINE void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + kLanes);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = {_mm512_permutex2var_ps(a, evens, b)};
  odd = {_mm512_permutex2var_ps(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b)};
}
PUMICE_INLINE void store_pairs(float* p, Lanes even, Lanes odd) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, first, odd.v));
  _mm512_storeu_ps(p + kLanes, _mm512_permutex2var_ps(even.v, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd.v));
}

static_assert(Lanes16<Lanes>);

}  // namespace avx512
}  // namespace
}  // namespace pumice::cpu
