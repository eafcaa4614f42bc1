// Elementary functions over sixteen lanes: one polynomial each, so that every instruction set gives the same bits.
// Coefficients: weighted minimax fits made for this file; errors below were measured over the whole range.
#pragma once

#include "core/kinds.h"

#ifndef PUMICE_MATH  // lanes without registers have calls instead
#define PUMICE_MATH PUMICE_INLINE
#endif

namespace pumice::cpu {
namespace {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: x + kMagic has round(x), nearest even, in its low bits

PUMICE_INLINE Lanes abs(const Lanes& x) { return floats(bits(x) & set_bits(0x7fffffff)); }
PUMICE_INLINE Lanes with_sign_of(const Lanes& magnitude, const Lanes& x) {
  return floats(bits(magnitude) | (bits(x) & set_bits(0x80000000)));
}

// A polynomial, highest coefficient first.
template <class... Rest>
PUMICE_INLINE Lanes horner(const Lanes& x, const Lanes& y, float c, Rest... rest) {
  const Lanes z = fma(x, y, set(c));
  if constexpr (sizeof...(rest) == 0) return z;
  else return horner(x, z, rest...);
}

// e^x for x in [kExpLow, kExpHigh], relative error 1.2e-7; elsewhere any number (NaN stays NaN).
// x = n ln 2 + r; e^r by a polynomial; 2^n through the exponent bits.
inline constexpr float kExpLow = -86.5f, kExpHigh = 88.7228f;
PUMICE_MATH Lanes exp_inside(const Lanes& x) {
  const Lanes shifted = fma(x, set(1.44269504f), set(kMagic));
  const Lanes n = shifted - set(kMagic);
  const Lanes r = fnma(n, set(1.42860677e-6f), fnma(n, set(0.693145752f), x));
  const Lanes p = horner(r, set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f, 1.0f, 1.0f);
  const Lanes half = floats(shift_left<23>(bits(shifted)) + set_bits(126u << 23));  // 2^(n-1): 2^128 has no bits of its own
  return (p + p) * half;
}
// For x <= 0: softmax.
PUMICE_MATH Lanes exp_negative(const Lanes& x) { return select(less(x, set(kExpLow)), set(0.0f), exp_inside(x)); }
PUMICE_MATH Lanes exp(const Lanes& x) { return select(less(set(kExpHigh), x), set(kInfinity), exp_negative(x)); }

// Absolute error 1e-7; relative 2e-7 near 0.
PUMICE_MATH Lanes tanh(const Lanes& x) {
  const Lanes u = abs(x), square = x * x;
  const Lanes tail = set(1.0f) - set(2.0f) / (exp_inside(min(set(20.0f), u + u)) + set(1.0f));  // 1 - 2 e^-20 rounds to 1
  const Lanes odd = horner(square, set(-0.0056973076f), 0.020632481f, -0.05373778f, 0.1333142f, -0.3333328f);
  const Lanes small = fma(x * square, odd, x);
  return select(less(u, set(0.625f)), small, with_sign_of(tail, x));
}

PUMICE_MATH Lanes sigmoid(const Lanes& x) { return set(1.0f) / (set(1.0f) + exp(set(0.0f) - x)); }
PUMICE_MATH Lanes silu(const Lanes& x) { return x / (set(1.0f) + exp(set(0.0f) - x)); }

// x Phi(x) = max(x, 0) - |x| Phi(-|x|) (Hendrycks and Gimpel 2016, the exact form), with Phi(-u) = e^P(u) / 2.
// Absolute error 4e-8 beyond the rounding of the result.
PUMICE_MATH Lanes gelu(const Lanes& x) {
  const Lanes u = min(set(9.5f), abs(x));  // Phi(-9.5) = 1e-21
  const Lanes p = horner(u, set(6.06097e-8f), -1.7859425e-6f, 1.960037e-5f, -8.271365e-5f, -2.2125851e-4f, 5.0765104e-3f, -0.03652354f,
                         -0.31824958f, -0.7978918f);
  return fnma(set(0.5f) * u, exp_inside(p * u), max(x, set(0.0f)));
}
// x (1 + tanh(z)) / 2 = x / (1 + e^-2z), z = sqrt(2 / pi) (x + 0.044715 x^3).
PUMICE_MATH Lanes gelu_tanh(const Lanes& x) {
  const Lanes minus_2z = x * fma(x * x, set(-0.0713548163f), set(-1.59576912f));
  return x / (set(1.0f) + exp(minus_2z));
}

// x / (1 + e^-1.702x).
PUMICE_MATH Lanes quick_gelu(const Lanes& x) { return x / (set(1.0f) + exp(x * set(-1.702f))); }

PUMICE_INLINE Lanes relu2(const Lanes& x) {
  const Lanes y = max(set(0.0f), x);
  return y * y;
}

struct Alphas { float p = 0.0f, n = 0.0f; };
// With u = min(x, -1e-6): e^u - 1 - x, near 0 from e^u's own polynomial without its first terms, which would cancel: u^2 P(u) + (u - x).
PUMICE_MATH Lanes xielu(const Lanes& x, const Alphas& alphas) {
  const Lanes u = min(set(-1e-6f), x), half = set(0.5f) * x;
  const Lanes near = fma(u * u, horner(u, set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f), u - x);
  const Lanes far = (exp_negative(u) - set(1.0f)) - x;
  const Lanes below = fma(set(alphas.n), select(less(u, set(-0.34f)), far, near), half);
  return select(less(set(0.0f), x), fma(set(alphas.p), x * x, half), below);
}

// One function per activation, by its name in activations.def: with_activation() of kernels.inc names each.
namespace activations {
PUMICE_INLINE Lanes none(const Lanes& x, const Alphas&) { return x; }
PUMICE_INLINE Lanes gelu(const Lanes& x, const Alphas&) { return cpu::gelu(x); }
PUMICE_INLINE Lanes gelu_tanh(const Lanes& x, const Alphas&) { return cpu::gelu_tanh(x); }
PUMICE_INLINE Lanes silu(const Lanes& x, const Alphas&) { return cpu::silu(x); }
PUMICE_INLINE Lanes relu(const Lanes& x, const Alphas&) { return max(x, set(0.0f)); }
PUMICE_INLINE Lanes tanh(const Lanes& x, const Alphas&) { return cpu::tanh(x); }
PUMICE_INLINE Lanes relu2(const Lanes& x, const Alphas&) { return cpu::relu2(x); }
PUMICE_INLINE Lanes sigmoid(const Lanes& x, const Alphas&) { return cpu::sigmoid(x); }
PUMICE_INLINE Lanes quick_gelu(const Lanes& x, const Alphas&) { return cpu::quick_gelu(x); }
PUMICE_INLINE Lanes xielu(const Lanes& x, const Alphas& alphas) { return cpu::xielu(x, alphas); }
}  // namespace activations

}  // namespace
}  // namespace pumice::cpu
