// The operations that the kernels over 512-bit vectors (*_512.h) need of their template parameter V. Native512 (simd512_native.h) is
// AVX-512. NeonDot (simd512_neon.h) is four 128-bit registers of 64-bit ARM. tests/cpp/cpu/emulated/simd512.h has the operations of AVX-512
// in plain C++, so that tests can run the kernels, slowly, on processors without these instructions. If V lacks an operation, the program
// does not compile, and GCC's message names the operation.
#pragma once

#include <concepts>
#include <cstdint>

namespace pumice::cpu::matrix {
namespace {

template <class R, class V>
concept IntsOf = std::same_as<R, typename V::Ints>;
template <class R, class V>
concept FloatsOf = std::same_as<R, typename V::Floats>;

// Sizes of register tiles. They depend on how many sums fit in the registers of V, together with the factors of the products.
struct TileSizes {
  int groups, tokens;   // number of groups and of tokens in a tile of integer products
  int tokens_two_subs;  // number of tokens in such a tile if each block has two sub-blocks
  int few_tokens;       // largest number of tokens that one group is multiplied by without a panel
  int float_tokens;     // number of tokens in a tile of float products, which has one group
};

template <class V>
concept Vectors512 = requires(const void* from, void* to, const float* floats, float* sums, const std::int32_t* dwords, std::int64_t lanes,
                              std::int32_t number, const std::int8_t (&table)[16], typename V::Ints i, typename V::Floats f,
                              typename V::Ints (&two)[2], typename V::Quads quads) {
  requires sizeof(typename V::Ints) == 64;    // 64 bytes, 32 words or 16 dwords
  requires sizeof(typename V::Floats) == 64;  // 16 floats
  requires std::same_as<decltype(V::kSizes), const TileSizes>;

  // Loads and stores. Addresses need not be aligned.
  { V::load(from) } -> IntsOf<V>;
  V::save(to, i);
  { V::load_floats(floats) } -> FloatsOf<V>;
  V::save_floats(sums, f);
  { V::load_first(floats, lanes) } -> FloatsOf<V>;  // loads `lanes` floats; the other lanes become zeros
  V::save_first(sums, f, lanes);                    // saves `lanes` floats; the other floats in memory stay unchanged
  // Loads `lanes` pairs of dwords: two[0] becomes the first dwords of the pairs, two[1] the second dwords. The other lanes become zeros.
  V::load_pairs(dwords, lanes, two);
  { V::load_as_quads(from) } -> IntsOf<V>;  // loads 16 bytes and copies byte n to all four bytes of dword n
  V::prefetch(from);
  V::prefetch_l2(from);

  // These operations copy one number to all lanes.
  { V::broadcast4(from) } -> IntsOf<V>;  // copies 4 bytes of memory (four bytes, two words or one dword) to every dword
  { V::broadcast_float(floats) } -> FloatsOf<V>;
  { V::splat(number) } -> IntsOf<V>;
  { V::splat_bytes(number) } -> IntsOf<V>;
  { V::splat(1.0f) } -> FloatsOf<V>;
  { V::zero_floats() } -> FloatsOf<V>;

  // Operations on integers.
  { V::bit_and(i, i) } -> IntsOf<V>;
  { V::bit_or(i, i) } -> IntsOf<V>;
  { V::bit_xor(i, i) } -> IntsOf<V>;
  { V::template bits<6, 2, 4>(i) } -> IntsOf<V>;  // moves 2 bits of every byte, from bit 6 on, to bits 4 and 5; other bits become 0
  { V::add_dwords(i, i) } -> IntsOf<V>;
  { V::multiply_dwords(i, i) } -> IntsOf<V>;
  { V::add_bytes(i, i) } -> IntsOf<V>;
  { V::subtract_bytes(i, i) } -> IntsOf<V>;
  { V::template signed_byte<3>(i) } -> IntsOf<V>;  // returns byte 3 of every dword, sign-extended
  { V::look_up(table, number, i) } -> IntsOf<V>;   // replaces every byte `code` (below 16) by table[code] + number

  // Products of bytes. load_quads() loads 16 signed bytes, which are quads 0 to 3. dot_codes(sums, codes, quad) multiplies the four bytes
  // of each dword of `codes` by the four bytes of the quad, and adds these products to the same dword of `sums`. The bytes of `codes` are
  // signed if kSignedCodes is true, and otherwise unsigned. Sums do not saturate.
  requires std::same_as<decltype(V::kSignedCodes), const bool>;
  { V::load_quads(from) } -> std::same_as<typename V::Quads>;
  { V::dot_codes(i, i, V::template quad<3>(quads)) } -> IntsOf<V>;
  // sums_to_floats() converts kStart + n to the float n, if |n| < 2^22. The value of kStart depends on V, because different conversions are
  // fastest on different processors.
  requires std::same_as<decltype(V::kStart), const std::int32_t>;
  { V::start_sums() } -> IntsOf<V>;  // returns kStart in every dword
  { V::sums_to_floats(i) } -> FloatsOf<V>;
  V::to_memory(f);  // if V has few registers, asks the compiler to keep f in memory until f is used again

  // Operations on floats.
  { V::to_floats(i) } -> FloatsOf<V>;
  { V::add(f, f) } -> FloatsOf<V>;
  { V::subtract(f, f) } -> FloatsOf<V>;
  { V::multiply(f, f) } -> FloatsOf<V>;
  { V::fma(f, f, f) } -> FloatsOf<V>;   // fma(a, b, c) returns a b + c
  { V::fnma(f, f, f) } -> FloatsOf<V>;  // fnma(a, b, c) returns c - a b

  // These operations convert 16 numbers to floats. All except e4m3() load the numbers from memory.
  { V::template load_bits<4, 4>(from) } -> FloatsOf<V>;  // loads 4 bits of each byte, from bit 4 on, as an unsigned number
  { V::load_signed_bytes(from) } -> FloatsOf<V>;
  { V::load_f16(from) } -> FloatsOf<V>;
  { V::load_bf16(from) } -> FloatsOf<V>;
  { V::template e4m3<3>(i) } -> FloatsOf<V>;  // returns 2^-120 times the values of the codes in byte 3 of every dword (core/code_values.h)
  { V::load_half_exponents(from) } -> FloatsOf<V>;  // returns half_exponent() (plain.h) of 16 bytes
};

// Vectors that also have products of words, and products of unsigned by signed bytes.
template <class V>
concept WordVectors512 = Vectors512<V> && requires(const void* from, typename V::Ints i, typename V::Ints (&two)[2]) {
  // Loads 64 signed bytes and widens them to words: two[0] becomes bytes 0 and 1 of each dword, two[1] bytes 2 and 3.
  V::widen_quads(from, two);
  // dot_bytes(sums, unsigned, signed) adds four products of bytes to every dword of `sums`. dot_words(sums, a, b) adds two products of
  // signed words to every dword. Neither operation saturates.
  { V::dot_bytes(i, i, i) } -> IntsOf<V>;
  { V::dot_words(i, i, i) } -> IntsOf<V>;
};

// Vectors that also have bfloat16 products. These operations treat numbers whose magnitude is below 2^-126 as zeros.
template <class V>
concept Bf16Vectors512 = Vectors512<V> && requires(void* to, typename V::Ints i, typename V::Floats f) {
  { V::pair_words(i) } -> IntsOf<V>;        // dword n of the result is the pair of word n and word 16 + n of i
  { V::dot_bf16(f, i, i) } -> FloatsOf<V>;  // adds two products to every sum, first the product of the odd elements
  V::save_bf16(to, f);                      // stores 16 floats as bfloat16, rounded to nearest, ties to even
};

}  // namespace
}  // namespace pumice::cpu::matrix
