// Walks rows in steps of sixteen lanes, and turns numbers into integer codes.
#pragma once

#include <cstdint>

#include "cpu/rows/lanes.h"
#include "cpu/rows/math.h"

namespace pumice::cpu {
namespace {

using Int = std::int64_t;

// Loads `count` elements; the other lanes are zero.
template <Lanes16 Lanes, class T>
PUMICE_INLINE Lanes load(const T* p, int count) {
  if (count == kLanes) return Lanes::load(p);
  T tail[kLanes] = {};
  __builtin_memcpy(tail, p, static_cast<std::size_t>(count) * sizeof(T));
  return Lanes::load(tail);
}
template <class T, class V>
PUMICE_INLINE void store(T* p, const V& x, int count) {
  if (count == kLanes) return store(p, x);
  T tail[kLanes];
  store(tail, x);
  __builtin_memcpy(p, tail, static_cast<std::size_t>(count) * sizeof(T));
}

// Calls f(first, count) over [0, n) in steps of sixteen lanes; only the last step can be shorter.
template <class F>
PUMICE_INLINE void sixteens(Int n, F f) {
  Int i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, static_cast<int>(n - i));
}

// ---------------------------------------------------------------- integer codes
// The largest magnitude, as bits. Compared as integers, NaN > infinity > every number, so that neither is lost.
template <Lanes16 Lanes>
PUMICE_INLINE BitsOf<Lanes> magnitude(const Lanes& x) {
  return bits(x) & Lanes::set_bits(0x7fffffff);
}

struct Scale {
  float scale, inverse;
};
// A block whose values are all below 1e-30 becomes zero. NaN and infinity stay in the scale, where a later check finds them.
PUMICE_INLINE Scale scale_of(std::int32_t largest_bits, float most) {
  const float largest = __builtin_bit_cast(float, largest_bits);
  if (largest < 1e-30f) return {0.0f, 0.0f};
  return {largest / most, most / largest};
}
// Rounds to nearest even. Codes are within +-most without clamping, because most / largest rounds up by half an ulp at most. NaN becomes
// most.
template <Lanes16 Lanes>
PUMICE_INLINE BitsOf<Lanes> codes_of(const Lanes& x, const Lanes& inverse, float most) {
  return bits(min(x * inverse, Lanes::set(most)) + Lanes::set(kMagic)) - bits(Lanes::set(kMagic));
}

}  // namespace
}  // namespace pumice::cpu
