// Elementary functions over sixteen lanes: one polynomial each, so that every instruction set gives the same bits.
// Coefficients: weighted minimax fits made for this file; errors below were measured over the whole range.
#pragma once

#include "core/kinds.h"
#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: x + kMagic has round(x), nearest even, in its low bits

template <Lanes16 Lanes>
PUMICE_INLINE Lanes abs(const Lanes& x) {
  return floats(bits(x) & Lanes::set_bits(0x7fffffff));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes with_sign_of(const Lanes& magnitude, const Lanes& x) {
  return floats(bits(magnitude) | (bits(x) & Lanes::set_bits(0x80000000)));
}

// kFunction(x, rest...), inlined where lanes are registers. Scalar lanes call it: beside sixteen calls of fmaf a step one more costs
// nothing, and inlining took 11 s more to compile and 150 kB.
template <auto kFunction, class Lanes, class... Rest>
[[gnu::noinline]] Lanes apply_by_call(const Lanes& x, const Rest&... rest) {
  return kFunction(x, rest...);
}
template <auto kFunction, Lanes16 Lanes, class... Rest>
PUMICE_INLINE Lanes apply(const Lanes& x, const Rest&... rest) {
  if constexpr (Lanes::kRegisters)
    return kFunction(x, rest...);
  else
    return apply_by_call<kFunction>(x, rest...);
}

// Evaluates a polynomial; the highest coefficient comes first.
template <Lanes16 Lanes, class... Rest>
PUMICE_INLINE Lanes horner(const Lanes& x, const Lanes& y, float c, Rest... rest) {
  const Lanes z = fma(x, y, Lanes::set(c));
  if constexpr (sizeof...(rest) == 0)
    return z;
  else
    return horner(x, z, rest...);
}

// e^x with x = n ln 2 + r: e^r by a polynomial, 2^n through the exponent bits.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_by_parts(const Lanes& x) {
  const Lanes shifted = fma(x, Lanes::set(1.44269504f), Lanes::set(kMagic));
  const Lanes n = shifted - Lanes::set(kMagic);
  const Lanes r = fnma(n, Lanes::set(1.42860677e-6f), fnma(n, Lanes::set(0.693145752f), x));
  const Lanes p = horner(r, Lanes::set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f, 1.0f, 1.0f);
  const Lanes half = floats(shift_left<23>(bits(shifted)) + Lanes::set_bits(126u << 23));  // 2^(n-1), because 2^128 is no float
  return (p + p) * half;
}
// e^x for x in [kExpLow, kExpHigh], relative error 1.2e-7. Outside of that range the result is unspecified (NaN stays NaN).
inline constexpr float kExpLow = -86.5f, kExpHigh = 88.7228f;
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_inside(const Lanes& x) {
  return apply<exp_by_parts<Lanes>>(x);
}
// e^x for x <= 0, as softmax needs it.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_negative(const Lanes& x) {
  return select(less(x, Lanes::set(kExpLow)), Lanes::set(0.0f), exp_inside(x));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp(const Lanes& x) {
  return select(less(Lanes::set(kExpHigh), x), Lanes::set(kInfinity), exp_negative(x));
}

// tanh(x): absolute error 1e-7, relative error 2e-7 near 0.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes tanh(const Lanes& x) {
  const Lanes u = abs(x), square = x * x;
  // At x = 10, 1 - 2 e^-20 rounds to 1.
  const Lanes tail = Lanes::set(1.0f) - Lanes::set(2.0f) / (exp_inside(min(Lanes::set(20.0f), u + u)) + Lanes::set(1.0f));
  const Lanes odd = horner(square, Lanes::set(-0.0056973076f), 0.020632481f, -0.05373778f, 0.1333142f, -0.3333328f);
  const Lanes small = fma(x * square, odd, x);
  return select(less(u, Lanes::set(0.625f)), small, with_sign_of(tail, x));
}

// cap * tanh(x / cap): the result is within +-cap.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes capped(const Lanes& x, float cap, float inverse) {
  return Lanes::set(cap) * apply<tanh<Lanes>>(x * Lanes::set(inverse));
}

template <Lanes16 Lanes>
PUMICE_INLINE Lanes sigmoid(const Lanes& x) {
  return Lanes::set(1.0f) / (Lanes::set(1.0f) + exp(Lanes::set(0.0f) - x));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes silu(const Lanes& x) {
  return x / (Lanes::set(1.0f) + exp(Lanes::set(0.0f) - x));
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|) (Hendrycks and Gimpel 2016, the exact form), with Phi(-u) = e^P(u) / 2.
// Absolute error 4e-8 beyond the rounding of the result.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu(const Lanes& x) {
  const Lanes u = min(Lanes::set(9.5f), abs(x));  // Phi(-9.5) = 1e-21
  const Lanes p = horner(u, Lanes::set(6.06097e-8f), -1.7859425e-6f, 1.960037e-5f, -8.271365e-5f, -2.2125851e-4f, 5.0765104e-3f,
                         -0.03652354f, -0.31824958f, -0.7978918f);
  return fnma(Lanes::set(0.5f) * u, exp_inside(p * u), max(x, Lanes::set(0.0f)));
}
// x (1 + tanh(z)) / 2 = x / (1 + e^-2z), z = sqrt(2 / pi) (x + 0.044715 x^3).
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu_tanh(const Lanes& x) {
  const Lanes minus_2z = x * fma(x * x, Lanes::set(-0.0713548163f), Lanes::set(-1.59576912f));
  return x / (Lanes::set(1.0f) + exp(minus_2z));
}

// x / (1 + e^-1.702x).
template <Lanes16 Lanes>
PUMICE_INLINE Lanes quick_gelu(const Lanes& x) {
  return x / (Lanes::set(1.0f) + exp(x * Lanes::set(-1.702f)));
}

template <Lanes16 Lanes>
PUMICE_INLINE Lanes relu2(const Lanes& x) {
  const Lanes y = max(Lanes::set(0.0f), x);
  return y * y;
}

struct Alphas {
  float p = 0.0f, n = 0.0f;
};
// e^u - 1 - x with u = min(x, -1e-6). Near 0 the first terms of e^u's polynomial would cancel, so they are left out: u^2 P(u) + (u - x).
template <Lanes16 Lanes>
PUMICE_INLINE Lanes xielu(const Lanes& x, const Alphas& alphas) {
  const Lanes u = min(Lanes::set(-1e-6f), x), half = Lanes::set(0.5f) * x;
  const Lanes near = fma(u * u, horner(u, Lanes::set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f), u - x);
  const Lanes far = (exp_negative(u) - Lanes::set(1.0f)) - x;
  const Lanes below = fma(Lanes::set(alphas.n), select(less(u, Lanes::set(-0.34f)), far, near), half);
  return select(less(Lanes::set(0.0f), x), fma(Lanes::set(alphas.p), x * x, half), below);
}

// One function for each activation, with its name in activations.def; with_activation() of kernels.h calls it.
namespace activations {
template <Lanes16 Lanes>
PUMICE_INLINE Lanes none(const Lanes& x, const Alphas&) {
  return x;
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu(const Lanes& x, const Alphas&) {
  return cpu::gelu(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu_tanh(const Lanes& x, const Alphas&) {
  return cpu::gelu_tanh(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes silu(const Lanes& x, const Alphas&) {
  return cpu::silu(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes relu(const Lanes& x, const Alphas&) {
  return max(x, Lanes::set(0.0f));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes tanh(const Lanes& x, const Alphas&) {
  return cpu::tanh(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes relu2(const Lanes& x, const Alphas&) {
  return cpu::relu2(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes sigmoid(const Lanes& x, const Alphas&) {
  return cpu::sigmoid(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes quick_gelu(const Lanes& x, const Alphas&) {
  return cpu::quick_gelu(x);
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes xielu(const Lanes& x, const Alphas& alphas) {
  return cpu::xielu(x, alphas);
}
}  // namespace activations

}  // namespace
}  // namespace pumice::cpu
