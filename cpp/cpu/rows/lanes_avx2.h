// Sixteen float lanes in two AVX2 registers, with FMA and F16C. The results have the same bits as those of lanes_scalar.h, which is plain
// C++. min(), max() and less() treat NaN like the AVX instructions. For example, max(a, b) is a > b ? a : b, so the result is b if either
// is NaN.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {
namespace avx2 {

struct Bits {
  __m256i lo, hi;
};
struct Mask {
  __m256 lo, hi;
};

struct Lanes {
  using Bits = avx2::Bits;
  using Mask = avx2::Mask;
  // Number of vectors of 16 sums that a product keeps in registers. They take 12 of the 16 registers; the others hold one row and one
  // factor.
  static constexpr int kAccumulators = 6;
  static constexpr bool kRegisters = true;
  __m256 lo, hi;

  PUMICE_INLINE static Lanes set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  PUMICE_INLINE static Bits set_bits(std::uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
  }
  PUMICE_INLINE static Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  PUMICE_INLINE static Lanes load(const std::uint16_t* p) {  // loads IEEE half floats
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  PUMICE_INLINE static Lanes load(const std::int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
  }
  // Returns the mask of the lanes with first <= index < last.
  PUMICE_INLINE static Mask between(int first, int last) {
    const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
    const __m256i begin = _mm256_set1_epi32(first - 1), end = _mm256_set1_epi32(last);
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lo, begin), _mm256_cmpgt_epi32(end, lo))),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(hi, begin), _mm256_cmpgt_epi32(end, hi)))};
  }
  PUMICE_INLINE static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

PUMICE_INLINE void store(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
PUMICE_INLINE void store(std::uint16_t* p, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
PUMICE_INLINE void store(std::int8_t* p, Bits x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// Stores 32 integers within [-128, 127], and writes the sums of the first 16 and of the last 16 integers to `sums`.
PUMICE_INLINE void store_codes(std::int8_t* p, Bits a, Bits b, std::int32_t* sums) {
  // The pack instructions handle each 128-bit half separately. The lower half of `bytes` therefore has the elements [0, 4), [8, 12) and so
  // on, and the upper half has the others. The permutation puts these sets of four in order.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
  const __m256i codes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
  const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
  const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0xb1));
  const __m256i sixteens = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e));
  sums[0] = _mm256_cvtsi256_si32(sixteens);
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sixteens, 1));
}
// Stores 32 integers within [-8191, 8191]. Returns the sum of c0 c2 + c1 c3 over all sets (c0, c1, c2, c3) of four neighbouring integers.
PUMICE_INLINE std::int32_t store_codes(std::int16_t* p, Bits a, Bits b) {
  const auto words = [](Bits x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xd8); };
  // In the result of crossed(), each sum c0 c2 + c1 c3 is in two lanes, so the code below adds up every second lane only.
  const auto crossed = [](__m256i x) { return _mm256_madd_epi16(x, _mm256_shuffle_epi32(x, 0xb1)); };
  const __m256i first = words(a), second = words(b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), first);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + kLanes), second);
  const __m256i eight = _mm256_add_epi32(crossed(first), crossed(second));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_unpackhi_epi64(four, four)));
}

PUMICE_INLINE void store_bytes(std::uint8_t* p, Bits a, Bits b) {  // stores 32 integers within [0, 255]
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
  const __m256i codes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), codes);
}

PUMICE_INLINE Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
PUMICE_INLINE Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
PUMICE_INLINE Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
PUMICE_INLINE Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
PUMICE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
PUMICE_INLINE Lanes fnma(Lanes a, Lanes b, Lanes c) { return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)}; }
PUMICE_INLINE Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
PUMICE_INLINE Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

PUMICE_INLINE Bits bits(Lanes x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
PUMICE_INLINE Lanes floats(Bits x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
PUMICE_INLINE Bits operator+(Bits a, Bits b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
PUMICE_INLINE Bits operator-(Bits a, Bits b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
PUMICE_INLINE Bits operator&(Bits a, Bits b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
PUMICE_INLINE Bits operator|(Bits a, Bits b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
PUMICE_INLINE Bits max(Bits a, Bits b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }  // compares signed integers
template <int N>
PUMICE_INLINE Bits shift_left(Bits a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}

PUMICE_INLINE Mask less(Lanes a, Lanes b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
PUMICE_INLINE Mask is_nan(Lanes a) { return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)}; }
PUMICE_INLINE bool any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }
PUMICE_INLINE Lanes select(Mask m, Lanes yes, Lanes no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

// sum() and max_lane() combine lanes in the order that lanes.h requires: lane i with lane i + 8, then with lane i + 4, i + 2 and i + 1.
PUMICE_INLINE float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PUMICE_INLINE float max_lane(Lanes x) {
  const __m256 eight = _mm256_max_ps(x.lo, x.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
PUMICE_INLINE std::int32_t max_lane(Bits x) {
  const __m256i eight = _mm256_max_epi32(x.lo, x.hi);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0x55)));
}
PUMICE_INLINE float first_lane(Lanes x) { return _mm256_cvtss_f32(x.lo); }

// Loads 32 floats, those with even indices into `even` and those with odd indices into `odd`. store_pairs() is the inverse.
PUMICE_INLINE void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  const Lanes a = Lanes::load(p), b = Lanes::load(p + kLanes);
  const auto in_order = [](__m256 x)
                            __attribute__((always_inline)) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); };
  even = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0x88)), in_order(_mm256_shuffle_ps(b.lo, b.hi, 0x88))};
  odd = {in_order(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)), in_order(_mm256_shuffle_ps(b.lo, b.hi, 0xdd))};
}
PUMICE_INLINE void store_pairs(float* p, Lanes even, Lanes odd) {
  const auto eight = [p](int at, __m256 e, __m256 o) __attribute__((always_inline)) {
    const __m256 lo = _mm256_unpacklo_ps(e, o), hi = _mm256_unpackhi_ps(e, o);
    _mm256_storeu_ps(p + at, _mm256_permute2f128_ps(lo, hi, 0x20));
    _mm256_storeu_ps(p + at + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
  };
  eight(0, even.lo, odd.lo);
  eight(16, even.hi, odd.hi);
}

static_assert(Lanes16<Lanes>);

}  // namespace avx2
}  // namespace
}  // namespace pumice::cpu
