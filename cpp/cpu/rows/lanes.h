// The concept Lanes16 lists the operations on sixteen float lanes that the row kernels require of their template parameter Lanes.
// lanes_avx2.h, lanes_avx512.h, lanes_neon.h and lanes_scalar.h implement these operations, with results of equal bits. If one of these
// files lacks an operation, its static_assert does not compile, and GCC's message names the operation.
#pragma once

#include <concepts>
#include <cstdint>

#define PUMICE_INLINE [[gnu::always_inline]] inline

namespace pumice::cpu {
namespace {

inline constexpr int kLanes = 16;

template <class L>
using BitsOf = typename L::Bits;  // lanes of 32-bit integers; sums and differences wrap around

// Operations without lanes among their arguments are static members; all others are free functions.
template <class L>
concept Lanes16 = requires(const float* from, const std::uint16_t* halves, const std::int8_t* bytes, float* to, std::uint16_t* to_halves,
                           std::int8_t* to_bytes, std::int16_t* to_words, std::uint8_t* to_unsigned, std::int32_t* sums, L x, L y,
                           typename L::Bits b, typename L::Mask m, int first, int last) {
  requires L::kAccumulators > 0;                   // number of vectors of 16 sums that a product keeps in registers
  { L::kRegisters } -> std::same_as<const bool&>;  // false if lanes are arrays; apply() in math.h then does not inline functions

  { L::set(1.0f) } -> std::same_as<L>;
  { L::set_bits(1u) } -> std::same_as<typename L::Bits>;
  { L::load(from) } -> std::same_as<L>;
  { L::load(halves) } -> std::same_as<L>;  // loads IEEE half floats
  { L::load(bytes) } -> std::same_as<L>;
  { L::between(first, last) } -> std::same_as<typename L::Mask>;  // returns the mask of the lanes with first <= index < last
  L::prefetch(from);
  store(to, x);
  store(to_halves, x);
  store(to_bytes, b);                 // stores integers within [-128, 127]
  store_codes(to_bytes, b, b, sums);  // stores 32 integers within [-128, 127], and the sums of the first 16 and of the last 16 integers
  // Stores 32 integers within [-8191, 8191]. Returns the sum of c0 c2 + c1 c3 over all sets (c0, c1, c2, c3) of four neighbouring integers.
  { store_codes(to_words, b, b) } -> std::same_as<std::int32_t>;
  store_bytes(to_unsigned, b, b);  // stores 32 integers within [0, 255]
  load_pairs(from, x, y);          // loads 32 floats: those with even indices into x, those with odd indices into y
  store_pairs(to, x, y);           // the inverse of load_pairs()

  { x + x } -> std::same_as<L>;
  { x - x } -> std::same_as<L>;
  { x* x } -> std::same_as<L>;
  { x / x } -> std::same_as<L>;
  { fma(x, x, x) } -> std::same_as<L>;   // fma(a, b, c) returns a b + c
  { fnma(x, x, x) } -> std::same_as<L>;  // fnma(a, b, c) returns c - a b
  { max(x, x) } -> std::same_as<L>;      // max(a, b) returns a > b ? a : b, which is b if either is NaN
  { min(x, x) } -> std::same_as<L>;      // min(a, b) returns a < b ? a : b
  { less(x, x) } -> std::same_as<typename L::Mask>;
  { is_nan(x) } -> std::same_as<typename L::Mask>;
  { any(m) } -> std::same_as<bool>;
  { select(m, x, x) } -> std::same_as<L>;  // for each lane, returns the first value if the mask is set, otherwise the second value

  { bits(x) } -> std::same_as<typename L::Bits>;
  { floats(b) } -> std::same_as<L>;
  { b + b } -> std::same_as<typename L::Bits>;
  { b - b } -> std::same_as<typename L::Bits>;
  { b& b } -> std::same_as<typename L::Bits>;
  { b | b } -> std::same_as<typename L::Bits>;
  { max(b, b) } -> std::same_as<typename L::Bits>;  // compares signed integers
  { shift_left<3>(b) } -> std::same_as<typename L::Bits>;

  // Operations that combine all lanes. They combine lane i with lane i + 8, then with lane i + 4, i + 2 and i + 1, so that the results have
  // the same bits on every instruction set.
  { sum(x) } -> std::same_as<float>;
  { max_lane(x) } -> std::same_as<float>;
  { max_lane(b) } -> std::same_as<std::int32_t>;
  { first_lane(x) } -> std::same_as<float>;
};

}  // namespace
}  // namespace pumice::cpu
