// Sixteen float lanes in four NEON registers of 64-bit ARM. The code uses only instructions of Armv8.0. The results have the same bits as
// those of lanes_scalar.h, which is plain C++.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {
namespace neon {

struct Bits {
  int32x4_t v[4];
};
struct Mask {
  uint32x4_t v[4];
};

// Returns an object with the four registers f(0), f(1), f(2) and f(3).
template <class To, class F>
PUMICE_INLINE To each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

struct Lanes {
  using Bits = neon::Bits;
  using Mask = neon::Mask;
  // Number of vectors of 16 sums that a product keeps in registers. They take 24 of the 32 registers, and the operands take the other
  // registers.
  static constexpr int kAccumulators = 6;
  static constexpr bool kRegisters = true;
  float32x4_t v[4];

  PUMICE_INLINE static Lanes set(float x) {
    return each<Lanes>([=](int) { return vdupq_n_f32(x); });
  }
  PUMICE_INLINE static Bits set_bits(std::uint32_t x) {
    return each<Bits>([=](int) { return vdupq_n_s32(static_cast<std::int32_t>(x)); });
  }
  PUMICE_INLINE static Lanes load(const float* p) {
    return each<Lanes>([=](int i) { return vld1q_f32(p + 4 * i); });
  }
  PUMICE_INLINE static Lanes load(const std::uint16_t* p) {  // loads IEEE half floats
    return each<Lanes>([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }
  PUMICE_INLINE static Lanes load(const std::int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  // Returns the mask of the lanes with first <= index < last.
  PUMICE_INLINE static Mask between(int first, int last) {
    return each<Mask>([=](int i) {
      const int32x4_t index = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
      return vandq_u32(vcgeq_s32(index, vdupq_n_s32(first)), vcltq_s32(index, vdupq_n_s32(last)));
    });
  }
  PUMICE_INLINE static void prefetch(const void* p) { __builtin_prefetch(p); }
};

PUMICE_INLINE void store(float* p, const Lanes& x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
PUMICE_INLINE void store(std::uint16_t* p, const Lanes& x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
// Returns the low 16 bits of the integers in registers i and i + 1.
PUMICE_INLINE int16x8_t words(const Bits& x, int i) { return vmovn_high_s32(vmovn_s32(x.v[i]), x.v[i + 1]); }
// Returns the low 8 bits of all integers.
PUMICE_INLINE int8x16_t bytes(const Bits& x) { return vmovn_high_s16(vmovn_s16(words(x, 0)), words(x, 2)); }
PUMICE_INLINE void store(std::int8_t* p, const Bits& x) { vst1q_s8(p, bytes(x)); }  // stores integers within [-128, 127]

// Stores 32 integers within [-128, 127], and writes the sums of the first 16 and of the last 16 integers to `sums`.
PUMICE_INLINE void store_codes(std::int8_t* p, const Bits& a, const Bits& b, std::int32_t* sums) {
  const int8x16_t first = bytes(a), second = bytes(b);
  vst1q_s8(p, first);
  vst1q_s8(p + kLanes, second);
  sums[0] = vaddlvq_s8(first);
  sums[1] = vaddlvq_s8(second);
}
// Stores 32 integers within [-8191, 8191]. Returns the sum of c0 c2 + c1 c3 over all sets (c0, c1, c2, c3) of four neighbouring integers.
// Each register holds one set.
PUMICE_INLINE std::int32_t store_codes(std::int16_t* p, const Bits& a, const Bits& b) {
  int32x2_t crossed = vdup_n_s32(0);
  for (int i = 0; i < 4; ++i) {
    crossed = vmla_s32(crossed, vget_low_s32(a.v[i]), vget_high_s32(a.v[i]));
    crossed = vmla_s32(crossed, vget_low_s32(b.v[i]), vget_high_s32(b.v[i]));
  }
  for (int i = 0; i < 4; i += 2) {
    vst1q_s16(p + 4 * i, words(a, i));
    vst1q_s16(p + kLanes + 4 * i, words(b, i));
  }
  return vaddv_s32(crossed);
}
PUMICE_INLINE void store_bytes(std::uint8_t* p, const Bits& a, const Bits& b) {  // stores 32 integers within [0, 255]
  vst1q_u8(p, vreinterpretq_u8_s8(bytes(a)));
  vst1q_u8(p + kLanes, vreinterpretq_u8_s8(bytes(b)));
}

PUMICE_INLINE Lanes operator+(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes operator-(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes operator*(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes operator/(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each<Lanes>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes fnma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each<Lanes>([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
}
// larger(), max() and min() use comparisons, because FMAX and FMIN return NaN if either argument is NaN, and treat -0 as less than +0.
PUMICE_INLINE float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
PUMICE_INLINE Lanes max(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return larger(a.v[i], b.v[i]); });
}
PUMICE_INLINE Lanes min(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}

PUMICE_INLINE Bits bits(const Lanes& x) {
  return each<Bits>([&](int i) { return vreinterpretq_s32_f32(x.v[i]); });
}
PUMICE_INLINE Lanes floats(const Bits& x) {
  return each<Lanes>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
PUMICE_INLINE Bits operator+(const Bits& a, const Bits& b) {
  return each<Bits>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Bits operator-(const Bits& a, const Bits& b) {
  return each<Bits>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Bits operator&(const Bits& a, const Bits& b) {
  return each<Bits>([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Bits operator|(const Bits& a, const Bits& b) {
  return each<Bits>([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Bits max(const Bits& a, const Bits& b) {
  return each<Bits>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
template <int N>
PUMICE_INLINE Bits shift_left(const Bits& a) {
  return each<Bits>([&](int i) { return vshlq_n_s32(a.v[i], N); });
}

PUMICE_INLINE Mask less(const Lanes& a, const Lanes& b) {
  return each<Mask>([&](int i) { return vcltq_f32(a.v[i], b.v[i]); });
}
PUMICE_INLINE Mask is_nan(const Lanes& a) {
  return each<Mask>([&](int i) { return vmvnq_u32(vceqq_f32(a.v[i], a.v[i])); });
}
PUMICE_INLINE bool any(const Mask& m) { return vmaxvq_u32(vorrq_u32(vorrq_u32(m.v[0], m.v[1]), vorrq_u32(m.v[2], m.v[3]))) != 0; }
PUMICE_INLINE Lanes select(const Mask& m, const Lanes& yes, const Lanes& no) {
  return each<Lanes>([&](int i) { return vbslq_f32(m.v[i], yes.v[i], no.v[i]); });
}

// sum() and max_lane() combine lanes in the order that lanes.h requires: lane i with lane i + 8, then with lane i + 4, i + 2 and i + 1.
PUMICE_INLINE float sum(const Lanes& x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PUMICE_INLINE float max_lane(const Lanes& x) {
  const float32x4_t four = larger(larger(x.v[0], x.v[2]), larger(x.v[1], x.v[3]));
  const float32x4_t two = larger(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(larger(two, vdupq_laneq_f32(two, 1)), 0);
}
PUMICE_INLINE std::int32_t max_lane(const Bits& x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3]))); }
PUMICE_INLINE float first_lane(const Lanes& x) { return vgetq_lane_f32(x.v[0], 0); }

// Loads 32 floats, those with even indices into `even` and those with odd indices into `odd`. store_pairs() is the inverse.
PUMICE_INLINE void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  for (int i = 0; i < 4; ++i) {
    const float32x4x2_t pairs = vld2q_f32(p + 8 * i);
    even.v[i] = pairs.val[0];
    odd.v[i] = pairs.val[1];
  }
}
PUMICE_INLINE void store_pairs(float* p, const Lanes& even, const Lanes& odd) {
  // In Clang, vst2q_f32 is a macro. Without the parentheses, the macro would treat the comma in braces as a separator of its arguments.
  for (int i = 0; i < 4; ++i) vst2q_f32(p + 8 * i, (float32x4x2_t{{even.v[i], odd.v[i]}}));
}

static_assert(Lanes16<Lanes>);

}  // namespace neon
}  // namespace
}  // namespace pumice::cpu
