// Vectors of 512 bits: what the kernels over them (*_512.h) ask of a set of vectors, their template parameter V. Native512
// (simd512_native.h) is AVX-512; tests/cpp/cpu/emulated/simd512.h has the same operations in plain C++, so that the kernels run, slowly,
// where the processor has none of these instructions. One that is missing or misspelt does not compile, and GCC names it.
#pragma once

#include <concepts>
#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

template <class R, class V>
concept IntsOf = std::same_as<R, typename V::Ints>;
template <class R, class V>
concept FloatsOf = std::same_as<R, typename V::Floats>;

template <class V>
concept Vectors512 =
    requires(const void* from, void* to, const float* floats, float* sums, const std::int32_t* dwords, std::int64_t lanes,
             std::int32_t number, const std::int8_t (&table)[16], typename V::Ints i, typename V::Floats f, typename V::Ints (&two)[2]) {
      requires sizeof(typename V::Ints) == 64;    // bytes, 32 words or 16 dwords
      requires sizeof(typename V::Floats) == 64;  // 16 of them

      // Memory, at any address.
      { V::load(from) } -> IntsOf<V>;
      V::save(to, i);
      { V::load_floats(floats) } -> FloatsOf<V>;
      V::save_floats(sums, f);
      { V::load_first(floats, lanes) } -> FloatsOf<V>;  // the others are zeros
      V::save_first(sums, f, lanes);                    // the others stay as they are
      V::load_pairs(dwords, lanes, two);                // the first and the second of `lanes` pairs of dwords; zeros for the others
      V::prefetch(from);
      V::prefetch_l2(from);

      // One number in all lanes.
      { V::broadcast4(from) } -> IntsOf<V>;  // 4 bytes, 2 words or a dword
      { V::broadcast_float(floats) } -> FloatsOf<V>;
      { V::splat(number) } -> IntsOf<V>;
      { V::splat_bytes(number) } -> IntsOf<V>;
      { V::splat(1.0f) } -> FloatsOf<V>;
      { V::zero_floats() } -> FloatsOf<V>;

      // Integers.
      { V::bit_and(i, i) } -> IntsOf<V>;
      { V::bit_or(i, i) } -> IntsOf<V>;
      { V::bit_xor(i, i) } -> IntsOf<V>;
      { V::template shift_words<3>(i) } -> IntsOf<V>;  // to the left
      { V::template shift_words<-3>(i) } -> IntsOf<V>;
      { V::shift_dwords_right_4(i) } -> IntsOf<V>;
      { V::add_dwords(i, i) } -> IntsOf<V>;
      { V::multiply_dwords(i, i) } -> IntsOf<V>;
      { V::subtract_bytes(i, i) } -> IntsOf<V>;
      { V::template signed_byte<3>(i) } -> IntsOf<V>;  // of every dword, as a dword
      { V::look_up(table, number, i) } -> IntsOf<V>;   // table[code] + number in every byte; codes are below 16
      { V::pair_words(i) } -> IntsOf<V>;               // words 0-15 and 16-31, two rows of 16, as 16 pairs: dword i is words i and 16 + i
      V::widen_quads(from, two);                       // 16 dwords of four signed bytes, as words: bytes 0 and 1 of each dword, and 2 and 3
      // Every dword of the first gains four products of unsigned and signed bytes, or two of words; nothing saturates.
      { V::dot_bytes(i, i, i) } -> IntsOf<V>;
      { V::dot_words(i, i, i) } -> IntsOf<V>;

      // Floats.
      { V::to_floats(i) } -> FloatsOf<V>;
      { V::add(f, f) } -> FloatsOf<V>;
      { V::subtract(f, f) } -> FloatsOf<V>;
      { V::multiply(f, f) } -> FloatsOf<V>;
      { V::fma(f, f, f) } -> FloatsOf<V>;   // a b + c
      { V::fnma(f, f, f) } -> FloatsOf<V>;  // c - a b

      // 16 numbers of a stream, widened.
      { V::load_unsigned_bytes(from) } -> IntsOf<V>;
      { V::load_signed_bytes(from) } -> IntsOf<V>;
      { V::load_f16(from) } -> FloatsOf<V>;
      { V::load_bf16(from) } -> FloatsOf<V>;
      { V::load_half_exponents(from) } -> FloatsOf<V>;  // half_exponent() of 16 bytes
    };

// Those with bfloat16; numbers below 2^-126 count as zeros.
template <class V>
concept Bf16Vectors512 = Vectors512<V> && requires(void* to, typename V::Ints i, typename V::Floats f) {
  { V::dot_bf16(f, i, i) } -> FloatsOf<V>;  // every sum gains two products, the odd one first
  V::save_bf16(to, f);                      // 16 of them, rounded to nearest even
};

}  // namespace
}  // namespace pumice::cpu::matrix
