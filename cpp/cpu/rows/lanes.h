// Sixteen float lanes: the operations that the row kernels need of their template parameter Lanes. lanes_avx2.h, lanes_avx512.h and
// lanes_scalar.h give the same bits. An operation that is missing or misspelt does not compile, and GCC names it.
#pragma once

#include <concepts>
#include <cstdint>

#define PUMICE_INLINE [[gnu::always_inline]] inline

namespace pumice::cpu {
namespace {

inline constexpr int kLanes = 16;

template <class L>
using BitsOf = typename L::Bits;  // lanes of 32-bit integers, which wrap

// Operations without lanes among their arguments are static members; all others are free functions.
template <class L>
concept Lanes16 = requires(const float* from, const std::uint16_t* halves, const std::int8_t* bytes, float* to, std::uint16_t* to_halves,
                           std::int8_t* to_bytes, std::int16_t* to_words, std::uint8_t* to_unsigned, std::int32_t* sums, L x, L y,
                           typename L::Bits b, typename L::Mask m, int first, int last) {
  requires L::kAccumulators > 0;                   // vectors of 16 that a product keeps in registers
  { L::kRegisters } -> std::same_as<const bool&>;  // false: apply() of math.h calls functions that it would inline otherwise

  { L::set(1.0f) } -> std::same_as<L>;
  { L::set_bits(1u) } -> std::same_as<typename L::Bits>;
  { L::load(from) } -> std::same_as<L>;
  { L::load(halves) } -> std::same_as<L>;  // IEEE half floats
  { L::load(bytes) } -> std::same_as<L>;
  { L::between(first, last) } -> std::same_as<typename L::Mask>;  // lanes with first <= index < last
  L::prefetch(from);
  store(to, x);
  store(to_halves, x);
  store(to_bytes, b);                 // integers within [-128, 127]
  store_codes(to_bytes, b, b, sums);  // 32 such integers, with the sums of the first and the second 16
  {
    store_codes(to_words, b, b)
  } -> std::same_as<std::int32_t>;  // 32 integers within [-8191, 8191]; returns the sum of c0 c2 + c1 c3 over fours of codes
  store_bytes(to_unsigned, b, b);   // 32 integers within [0, 255]
  load_pairs(from, x, y);           // 32 floats as 16 even and 16 odd ones
  store_pairs(to, x, y);            // the inverse of load_pairs()

  { x + x } -> std::same_as<L>;
  { x - x } -> std::same_as<L>;
  { x* x } -> std::same_as<L>;
  { x / x } -> std::same_as<L>;
  { fma(x, x, x) } -> std::same_as<L>;   // a b + c
  { fnma(x, x, x) } -> std::same_as<L>;  // c - a b
  { max(x, x) } -> std::same_as<L>;      // a > b ? a : b, so that the second operand wins when either is NaN
  { min(x, x) } -> std::same_as<L>;      // a < b ? a : b
  { less(x, x) } -> std::same_as<typename L::Mask>;
  { is_nan(x) } -> std::same_as<typename L::Mask>;
  { any(m) } -> std::same_as<bool>;
  { select(m, x, x) } -> std::same_as<L>;  // the first where the mask is set, otherwise the second

  { bits(x) } -> std::same_as<typename L::Bits>;
  { floats(b) } -> std::same_as<L>;
  { b + b } -> std::same_as<typename L::Bits>;
  { b - b } -> std::same_as<typename L::Bits>;
  { b& b } -> std::same_as<typename L::Bits>;
  { b | b } -> std::same_as<typename L::Bits>;
  { max(b, b) } -> std::same_as<typename L::Bits>;  // signed
  { shift_left<3>(b) } -> std::same_as<typename L::Bits>;

  // Every horizontal operation folds lanes in one order: i and i + 8, then i and i + 4, i + 2, i + 1.
  { sum(x) } -> std::same_as<float>;
  { max_lane(x) } -> std::same_as<float>;
  { max_lane(b) } -> std::same_as<std::int32_t>;
  { first_lane(x) } -> std::same_as<float>;
};

}  // namespace
}  // namespace pumice::cpu
