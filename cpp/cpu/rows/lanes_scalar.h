// Sixteen float lanes in plain C++, for any machine. The results have the same bits as those of the other implementations of lanes.h.
#pragma once

#include <cstdint>

#include "core/formats.h"
#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {
namespace scalar {

struct Bits {
  std::int32_t v[kLanes];
};
struct Mask {
  bool v[kLanes];
};

template <class To, class F>
PUMICE_INLINE To map(F f) {
  To out;
// This loop must not be unrolled, because the sixteen calls of fmaf in each fma() would then take 20 s to compile.
#pragma GCC unroll 1
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}

struct Lanes {
  using Bits = scalar::Bits;
  using Mask = scalar::Mask;
  static constexpr int kAccumulators = 1;
  static constexpr bool kRegisters = false;
  float v[kLanes];

  PUMICE_INLINE static Lanes set(float x) {
    return map<Lanes>([=](int) { return x; });
  }
  PUMICE_INLINE static Bits set_bits(std::uint32_t x) {
    return map<Bits>([=](int) { return static_cast<std::int32_t>(x); });
  }
  PUMICE_INLINE static Lanes load(const float* p) {
    return map<Lanes>([=](int i) { return p[i]; });
  }
  PUMICE_INLINE static Lanes load(const std::uint16_t* p) {
    return map<Lanes>([=](int i) { return f16_to_f32(p[i]); });
  }
  PUMICE_INLINE static Lanes load(const std::int8_t* p) {
    return map<Lanes>([=](int i) { return static_cast<float>(p[i]); });
  }
  PUMICE_INLINE static Mask between(int first, int last) {
    return map<Mask>([=](int i) { return i >= first && i < last; });
  }
  PUMICE_INLINE static void prefetch(const void*) {}
};

PUMICE_INLINE void store(float* p, const Lanes& x) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.v[i];
}
PUMICE_INLINE void store(std::uint16_t* p, const Lanes& x) {
  for (int i = 0; i < kLanes; ++i) p[i] = f32_to_f16(x.v[i]);
}
PUMICE_INLINE void store(std::int8_t* p, const Bits& x) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(x.v[i]);
}
PUMICE_INLINE void store_codes(std::int8_t* p, const Bits& a, const Bits& b, std::int32_t* sums) {
  store(p, a);
  store(p + kLanes, b);
  sums[0] = sums[1] = 0;
  for (int i = 0; i < kLanes; ++i) {
    sums[0] += a.v[i];
    sums[1] += b.v[i];
  }
}
PUMICE_INLINE std::int32_t store_codes(std::int16_t* p, const Bits& a, const Bits& b) {
  std::int32_t crossed = 0;
  for (int i = 0; i < 2 * kLanes; ++i) p[i] = static_cast<std::int16_t>(i < kLanes ? a.v[i] : b.v[i - kLanes]);
  for (int i = 0; i < 2 * kLanes; i += 4) crossed += p[i] * p[i + 2] + p[i + 1] * p[i + 3];
  return crossed;
}

PUMICE_INLINE void store_bytes(std::uint8_t* p, const Bits& a, const Bits& b) {  // stores 32 integers within [0, 255]
  for (int i = 0; i < 2 * kLanes; ++i) p[i] = static_cast<std::uint8_t>(i < kLanes ? a.v[i] : b.v[i - kLanes]);
}

PUMICE_INLINE Lanes operator+(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] + b.v[i]; });
}
PUMICE_INLINE Lanes operator-(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] - b.v[i]; });
}
PUMICE_INLINE Lanes operator*(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] * b.v[i]; });
}
PUMICE_INLINE Lanes operator/(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] / b.v[i]; });
}
PUMICE_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return map<Lanes>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
PUMICE_INLINE Lanes fnma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return map<Lanes>([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
PUMICE_INLINE Lanes max(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
PUMICE_INLINE Lanes min(const Lanes& a, const Lanes& b) {
  return map<Lanes>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

PUMICE_INLINE Bits bits(const Lanes& x) {
  return map<Bits>([&](int i) { return __builtin_bit_cast(std::int32_t, x.v[i]); });
}
PUMICE_INLINE Lanes floats(const Bits& x) {
  return map<Lanes>([&](int i) { return __builtin_bit_cast(float, x.v[i]); });
}
// Calls f for each lane. f must return unsigned integers, so that results wrap around.
template <class F>
PUMICE_INLINE Bits wrapped(F f) {
  return map<Bits>([&](int i) { return static_cast<std::int32_t>(f(i)); });
}
PUMICE_INLINE std::uint32_t word(const Bits& x, int i) { return static_cast<std::uint32_t>(x.v[i]); }
PUMICE_INLINE Bits operator+(const Bits& a, const Bits& b) {
  return wrapped([&](int i) { return word(a, i) + word(b, i); });
}
PUMICE_INLINE Bits operator-(const Bits& a, const Bits& b) {
  return wrapped([&](int i) { return word(a, i) - word(b, i); });
}
PUMICE_INLINE Bits operator&(const Bits& a, const Bits& b) {
  return map<Bits>([&](int i) { return a.v[i] & b.v[i]; });
}
PUMICE_INLINE Bits operator|(const Bits& a, const Bits& b) {
  return map<Bits>([&](int i) { return a.v[i] | b.v[i]; });
}
PUMICE_INLINE Bits max(const Bits& a, const Bits& b) {
  return map<Bits>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
PUMICE_INLINE Bits shift_left(const Bits& a) {
  return wrapped([&](int i) { return word(a, i) << N; });
}

PUMICE_INLINE Mask less(const Lanes& a, const Lanes& b) {
  return map<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
PUMICE_INLINE Mask is_nan(const Lanes& a) {
  return map<Mask>([&](int i) { return a.v[i] != a.v[i]; });
}
PUMICE_INLINE bool any(const Mask& m) {
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= m.v[i];
  return found;
}
PUMICE_INLINE Lanes select(const Mask& m, const Lanes& yes, const Lanes& no) {
  return map<Lanes>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}

// Combines lanes with f in the order that lanes.h requires: lane i with lane i + 8, then with lane i + 4, i + 2 and i + 1.
template <class T, class F>
PUMICE_INLINE T fold(const T (&lanes)[kLanes], F f) {
  T v[kLanes / 2];
  for (int i = 0; i < kLanes / 2; ++i) v[i] = f(lanes[i], lanes[i + kLanes / 2]);
  for (int half = kLanes / 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = f(v[i], v[i + half]);
  }
  return v[0];
}
PUMICE_INLINE float sum(const Lanes& x) {
  return fold(x.v, [](float a, float b) { return a + b; });
}
PUMICE_INLINE float max_lane(const Lanes& x) {
  return fold(x.v, [](float a, float b) { return a > b ? a : b; });
}
PUMICE_INLINE std::int32_t max_lane(const Bits& x) {
  return fold(x.v, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
}
PUMICE_INLINE float first_lane(const Lanes& x) { return x.v[0]; }

PUMICE_INLINE void load_pairs(const float* p, Lanes& even, Lanes& odd) {
  even = map<Lanes>([=](int i) { return p[2 * i]; });
  odd = map<Lanes>([=](int i) { return p[2 * i + 1]; });
}
PUMICE_INLINE void store_pairs(float* p, const Lanes& even, const Lanes& odd) {
  for (int i = 0; i < kLanes; ++i) {
    p[2 * i] = even.v[i];
    p[2 * i + 1] = odd.v[i];
  }
}

static_assert(Lanes16<Lanes>);

}  // namespace scalar
}  // namespace
}  // namespace pumice::cpu
