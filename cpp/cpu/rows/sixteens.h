// Helpers that process rows in steps of sixteen lanes, and that quantize floats to integer codes.
#pragma once

#include <cstdint>

#include "cpu/rows/lanes.h"
#include "cpu/rows/math.h"

namespace pumice::cpu {
namespace {

using Int = std::int64_t;

// Loads `count` elements; the other lanes become zeros.
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

// Divides [0, n) into steps of sixteen and calls f(first, count) for each step. Only the last step can be shorter.
template <class F>
PUMICE_INLINE void sixteens(Int n, F f) {
  Int i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, static_cast<int>(n - i));
}

// Applies an activation to n values, in place. Only this function has a loop for each activation. With such loops in gate(), multiply(),
// conv() and epilogue() too, the row kernels took a third longer to compile.
template <Lanes16 Lanes>
__attribute__((noinline)) void activate(float* x, Int n, Activation activation, const Alphas& alphas) {
  with_activation<Lanes>(activation, alphas, [&](auto f) __attribute__((always_inline)) {
    sixteens(n, [&](Int i, int count) __attribute__((always_inline)) { store(x + i, f(load<Lanes>(x + i, count)), count); });
  });
}
// kChunk values fit in the L1 cache. chunks() divides [0, n) into chunks of kChunk values and calls f(first, count) for each. A kernel that
// needs several passes over its values makes all passes over one chunk before it continues with the next chunk.
inline constexpr Int kChunk = 512;
template <class F>
PUMICE_INLINE void chunks(Int n, F f) {
  for (Int first = 0; first < n; first += kChunk) f(first, n - first < kChunk ? n - first : kChunk);
}

// ---------------------------------------------------------------- integer codes
// Returns the bits of |x|. Compared as integers, NaN > infinity > every finite number. The maximum of these bits over a block therefore
// shows whether the block contains NaN or infinity.
template <Lanes16 Lanes>
PUMICE_INLINE BitsOf<Lanes> magnitude(const Lanes& x) {
  return bits(x) & Lanes::set_bits(0x7fffffff);
}

struct Scale {
  float scale, inverse;
};
// Returns the scale of a block whose largest magnitude has the bits `largest_bits`. The largest magnitude gets the code `most`. If all
// magnitudes are below 1e-30, the scale is 0, and the whole block becomes zero. If the block contains NaN or infinity, the scale is NaN or
// infinite, and so are the results, which are checked later.
PUMICE_INLINE Scale scale_of(std::int32_t largest_bits, float most) {
  const float largest = __builtin_bit_cast(float, largest_bits);
  if (largest < 1e-30f) return {0.0f, 0.0f};
  return {largest / most, most / largest};
}
// Returns x * inverse, rounded to the nearest integers, ties to even. min() is only needed for NaN, which becomes `most`. Other products
// exceed `most` at most by a rounding error, which disappears when they are rounded to integers.
template <Lanes16 Lanes>
PUMICE_INLINE BitsOf<Lanes> codes_of(const Lanes& x, const Lanes& inverse, float most) {
  return bits(min(x * inverse, Lanes::set(most)) + Lanes::set(kMagic)) - bits(Lanes::set(kMagic));
}

}  // namespace
}  // namespace pumice::cpu
