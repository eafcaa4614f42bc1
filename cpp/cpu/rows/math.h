// Elementary functions with sixteen lanes. Each function evaluates the same polynomial on every instruction set, so that the results have
// the same bits on all of them. The coefficients are weighted minimax fits that were made for this file. The errors in the comments were
// measured over the whole range of arguments.
#pragma once

#include "core/kinds.h"
#include "cpu/rows/lanes.h"

namespace pumice::cpu {
namespace {

inline constexpr float kInfinity = __builtin_inff();
// kMagic is 1.5 * 2^23. The low bits of x + kMagic are x rounded to the nearest integer, ties to even.
inline constexpr float kMagic = 12582912.0f;

template <Lanes16 Lanes>
PUMICE_INLINE Lanes abs(const Lanes& x) {
  return floats(bits(x) & Lanes::set_bits(0x7fffffff));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes with_sign_of(const Lanes& magnitude, const Lanes& x) {
  return floats(bits(magnitude) | (bits(x) & Lanes::set_bits(0x80000000)));
}

template <auto kFunction, class Lanes, class... Rest>
[[gnu::noinline]] Lanes apply_by_call(const Lanes& x, const Rest&... rest) {
  return kFunction(x, rest...);
}
// Returns kFunction(x, rest...). Inlines the function if lanes are registers, and calls it if lanes are scalars. With scalars, every
// multiply-add already calls fmaf sixteen times, so one more call takes no noticeable time. Inlining took 11 s more to compile and 150 kB
// more code.
template <auto kFunction, Lanes16 Lanes, class... Rest>
PUMICE_INLINE Lanes apply(const Lanes& x, const Rest&... rest) {
  if constexpr (Lanes::kRegisters)
    return kFunction(x, rest...);
  else
    return apply_by_call<kFunction>(x, rest...);
}

// Evaluates a polynomial in x by Horner's scheme. y is the coefficient of the highest power, and the other arguments are the coefficients
// of the lower powers, in descending order.
template <Lanes16 Lanes, class... Rest>
PUMICE_INLINE Lanes horner(const Lanes& x, const Lanes& y, float c, Rest... rest) {
  const Lanes z = fma(x, y, Lanes::set(c));
  if constexpr (sizeof...(rest) == 0)
    return z;
  else
    return horner(x, z, rest...);
}

// Returns e^x, computed as 2^n e^r with x = n ln 2 + r. e^r is a polynomial, and 2^n is a float that is made from its exponent bits.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_by_parts(const Lanes& x) {
  const Lanes shifted = fma(x, Lanes::set(1.44269504f), Lanes::set(kMagic));
  const Lanes n = shifted - Lanes::set(kMagic);
  const Lanes r = fnma(n, Lanes::set(1.42860677e-6f), fnma(n, Lanes::set(0.693145752f), x));
  const Lanes p = horner(r, Lanes::set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f, 1.0f, 1.0f);
  // n may be 128, and 2^128 is too large for a float. So `half` is 2^(n-1), and p is doubled instead.
  const Lanes half = floats(shift_left<23>(bits(shifted)) + Lanes::set_bits(126u << 23));
  return (p + p) * half;
}
// exp_inside() returns e^x for x in [kExpLow, kExpHigh], with a relative error of 1.2e-7. Outside that range the result is unspecified, but
// NaN stays NaN.
inline constexpr float kExpLow = -86.5f, kExpHigh = 88.7228f;
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_inside(const Lanes& x) {
  return apply<exp_by_parts<Lanes>>(x);
}
// Returns e^x for x <= 0, which softmax needs. Below kExpLow the result is 0.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp_negative(const Lanes& x) {
  return select(less(x, Lanes::set(kExpLow)), Lanes::set(0.0f), exp_inside(x));
}
template <Lanes16 Lanes>
PUMICE_INLINE Lanes exp(const Lanes& x) {
  return select(less(Lanes::set(kExpHigh), x), Lanes::set(kInfinity), exp_negative(x));
}

// Returns tanh(x) with an absolute error of 1e-7, and with a relative error of 2e-7 near 0.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes tanh(const Lanes& x) {
  const Lanes u = abs(x), square = x * x;
  // 2 u is limited to 20, because 1 - 2 e^-20 already rounds to 1.
  const Lanes tail = Lanes::set(1.0f) - Lanes::set(2.0f) / (exp_inside(min(Lanes::set(20.0f), u + u)) + Lanes::set(1.0f));
  const Lanes odd = horner(square, Lanes::set(-0.0056973076f), 0.020632481f, -0.05373778f, 0.1333142f, -0.3333328f);
  const Lanes small = fma(x * square, odd, x);
  return select(less(u, Lanes::set(0.625f)), small, with_sign_of(tail, x));
}

// Returns cap * tanh(x / cap), which is between -cap and cap. `inverse` is 1 / cap.
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

// Returns x Phi(x), which is the exact form of gelu (Hendrycks and Gimpel 2016), computed as max(x, 0) - |x| Phi(-|x|). Phi(-u) is e^P(u) /
// 2 with a polynomial P. The absolute error is 4e-8 plus the rounding of the result.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu(const Lanes& x) {
  const Lanes u = min(Lanes::set(9.5f), abs(x));  // limited, because for larger |x| the second term is below 1e-19
  const Lanes p = horner(u, Lanes::set(6.06097e-8f), -1.7859425e-6f, 1.960037e-5f, -8.271365e-5f, -2.2125851e-4f, 5.0765104e-3f,
                         -0.03652354f, -0.31824958f, -0.7978918f);
  return fnma(Lanes::set(0.5f) * u, exp_inside(p * u), max(x, Lanes::set(0.0f)));
}
// Returns x (1 + tanh(z)) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3), computed as x / (1 + e^-2z).
template <Lanes16 Lanes>
PUMICE_INLINE Lanes gelu_tanh(const Lanes& x) {
  const Lanes minus_2z = x * fma(x * x, Lanes::set(-0.0713548163f), Lanes::set(-1.59576912f));
  return x / (Lanes::set(1.0f) + exp(minus_2z));
}

// Returns x / (1 + e^-1.702x).
template <Lanes16 Lanes>
PUMICE_INLINE Lanes quick_gelu(const Lanes& x) {
  return x / (Lanes::set(1.0f) + exp(x * Lanes::set(-1.702f)));
}

// Returns log(1 + e^x) = max(x, 0) + log(1 + y) with y = e^-|x| and log(1 + y) = 2 atanh(y / (2 + y)). The relative error is 3.3e-7.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes softplus(const Lanes& x) {
  const Lanes y = exp_negative(Lanes::set(0.0f) - abs(x));
  const Lanes s = y / (Lanes::set(2.0f) + y);
  const Lanes p = horner(s * s, Lanes::set(0.28178325f), 0.27960604f, 0.4002491f, 0.66666317f, 2.0f);
  return fma(s, p, max(x, Lanes::set(0.0f)));
}

template <Lanes16 Lanes>
PUMICE_INLINE Lanes relu2(const Lanes& x) {
  const Lanes y = max(Lanes::set(0.0f), x);
  return y * y;
}

struct Alphas {
  float p = 0.0f, n = 0.0f;
};
// Returns alphas.p x^2 + x / 2 for x > 0, and otherwise alphas.n (e^u - 1 - x) + x / 2 with u = min(x, -1e-6). If u is near 0, e^u - 1
// would lose nearly all digits. So e^u - 1 - x is then computed as u^2 P(u) + (u - x), where 1 + u + u^2 P(u) is the polynomial for e^u.
template <Lanes16 Lanes>
PUMICE_INLINE Lanes xielu(const Lanes& x, const Alphas& alphas) {
  const Lanes u = min(Lanes::set(-1e-6f), x), half = Lanes::set(0.5f) * x;
  const Lanes near = fma(u * u, horner(u, Lanes::set(0.0013814222f), 0.008368899f, 0.041668404f, 0.1666652f, 0.49999994f), u - x);
  const Lanes far = (exp_negative(u) - Lanes::set(1.0f)) - x;
  const Lanes below = fma(Lanes::set(alphas.n), select(less(u, Lanes::set(-0.34f)), far, near), half);
  return select(less(Lanes::set(0.0f), x), fma(Lanes::set(alphas.p), x * x, half), below);
}

// There is one function for each activation, with the activation's name in activations.def. with_activation() calls these functions.
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
template <Lanes16 Lanes>
PUMICE_INLINE Lanes softplus(const Lanes& x, const Alphas&) {
  return cpu::softplus(x);
}
}  // namespace activations

// Calls f with the activation's function as a compile-time constant. If an activation has no function in math.h, the program does not
// compile.
template <Lanes16 Lanes, class F>
PUMICE_INLINE void with_activation(Activation activation, const Alphas& alphas, F f) {
  switch (activation) {
#define PUMICE_ACTIVATION(name) \
  case Activation::name:        \
    return f([&](const Lanes& x) __attribute__((always_inline)) { return apply<activations::name<Lanes>>(x, alphas); });
#include "core/activations.def"
#undef PUMICE_ACTIVATION
  }
}

}  // namespace
}  // namespace pumice::cpu
