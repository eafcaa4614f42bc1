// The vector operations of cpp/cpu/matrix/simd512.h in plain C++. They follow the descriptions of the instructions in Intel SDM volume 2;
// dot_bf16() follows the pseudo-code of vdpbf16ps there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/code_values.h"
#include "core/formats.h"
#include "cpu/matrix/simd512.h"

namespace pumice::cpu::matrix {

struct EmulatedInts {
  std::uint32_t d[16];
};
struct EmulatedFloats {
  float v[16];
};

namespace {

template <class F>
EmulatedInts dwords(F f) {
  EmulatedInts v;
  for (int i = 0; i < 16; ++i) v.d[i] = static_cast<std::uint32_t>(f(i));
  return v;
}
template <class F>
EmulatedInts bytes(F f) {
  std::uint8_t v[64];
  for (int i = 0; i < 64; ++i) v[i] = static_cast<std::uint8_t>(f(i));
  return __builtin_bit_cast(EmulatedInts, v);
}
template <class F>
EmulatedInts words(F f) {
  std::uint16_t v[32];
  for (int i = 0; i < 32; ++i) v[i] = static_cast<std::uint16_t>(f(i));
  return __builtin_bit_cast(EmulatedInts, v);
}
template <class F>
EmulatedFloats floats(F f) {
  EmulatedFloats v;
  for (int i = 0; i < 16; ++i) v.v[i] = f(i);
  return v;
}
inline std::uint8_t byte_of(const EmulatedInts& v, int i) { return static_cast<std::uint8_t>(v.d[i / 4] >> (i % 4 * 8)); }
inline std::uint16_t word_of(const EmulatedInts& v, int i) { return static_cast<std::uint16_t>(v.d[i / 2] >> (i % 2 * 16)); }
template <class T>
T at(const void* p, int i) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(p) + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

inline float no_denormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

}  // namespace

struct Emulated512 {
  using Ints = EmulatedInts;
  using Floats = EmulatedFloats;
  using Quads = const std::uint8_t*;
  static constexpr TileSizes kSizes{.groups = 2, .tokens = 6, .tokens_two_subs = 4, .few_tokens = 8, .float_tokens = 12};

  static Ints load(const void* p) {
    Ints v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void save(void* p, const Ints& v) { std::memcpy(p, &v, sizeof(v)); }
  static Floats load_floats(const float* p) {
    Floats v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void save_floats(float* p, const Floats& v) { std::memcpy(p, &v, sizeof(v)); }
  static void save_first(float* p, const Floats& v, std::int64_t lanes) {
    std::memcpy(p, &v, static_cast<std::size_t>(lanes) * sizeof(float));
  }
  static void prefetch(const void*) {}
  static void prefetch_l2(const void*) {}

  static Ints broadcast4(const void* p) {
    return dwords([&](int) { return at<std::uint32_t>(p, 0); });
  }
  static Ints splat(std::int32_t x) {
    return dwords([&](int) { return x; });
  }
  static Ints splat_bytes(int x) {
    return bytes([&](int) { return x; });
  }
  static Floats splat(float x) {
    return floats([&](int) { return x; });
  }
  static Floats zero_floats() { return splat(0.0f); }

  static Floats broadcast_float(const float* p) { return splat(*p); }
  static Floats load_first(const float* p, std::int64_t lanes) {
    return floats([&](int i) { return i < lanes ? p[i] : 0.0f; });
  }
  static void load_pairs(const std::int32_t* p, std::int64_t count, Ints (&out)[2]) {
    for (int j = 0; j < 2; ++j) out[j] = dwords([&](int i) { return i < count ? p[2 * i + j] : 0; });
  }
  static Ints add_dwords(const Ints& a, const Ints& b) {
    return dwords([&](int i) { return a.d[i] + b.d[i]; });
  }
  static Ints multiply_dwords(const Ints& a, const Ints& b) {
    return dwords([&](int i) { return a.d[i] * b.d[i]; });
  }

  static Ints bit_and(const Ints& a, const Ints& b) {
    return dwords([&](int i) { return a.d[i] & b.d[i]; });
  }
  static Ints bit_or(const Ints& a, const Ints& b) {
    return dwords([&](int i) { return a.d[i] | b.d[i]; });
  }
  static Ints bit_xor(const Ints& a, const Ints& b) {
    return dwords([&](int i) { return a.d[i] ^ b.d[i]; });
  }
  template <int kFrom, int kCount, int kTo>
  static Ints bits(const Ints& v) {
    return bytes([&](int i) { return (byte_of(v, i) >> kFrom & ((1 << kCount) - 1)) << kTo; });
  }
  static Ints load_as_quads(const void* p) {
    return bytes([&](int i) { return at<std::uint8_t>(p, i / 4); });
  }
  static Ints add_bytes(const Ints& a, const Ints& b) {
    return bytes([&](int i) { return byte_of(a, i) + byte_of(b, i); });
  }
  static Ints subtract_bytes(const Ints& a, const Ints& b) {
    return bytes([&](int i) { return byte_of(a, i) - byte_of(b, i); });
  }
  template <int kByte>
  static Ints signed_byte(const Ints& v) {
    return dwords([&](int i) { return static_cast<std::int8_t>(byte_of(v, 4 * i + kByte)); });
  }
  static Ints look_up(const std::int8_t (&table)[16], int add, const Ints& codes) {
    return bytes([&](int i) { return byte_of(codes, i) & 0x80 ? 0 : table[byte_of(codes, i) & 15] + add; });
  }

  static Ints dot_bytes(const Ints& sums, const Ints& unsigned_bytes, const Ints& signed_bytes) {
    return dwords([&](int i) {
      std::int32_t sum = 0;
      for (int j = 4 * i; j < 4 * i + 4; ++j) sum += byte_of(unsigned_bytes, j) * static_cast<std::int8_t>(byte_of(signed_bytes, j));
      return sums.d[i] + static_cast<std::uint32_t>(sum);
    });
  }
  static Ints dot_words(const Ints& sums, const Ints& a, const Ints& b) {
    return dwords([&](int i) {
      std::int64_t sum = 0;
      for (int j = 2 * i; j < 2 * i + 2; ++j) sum += static_cast<std::int16_t>(word_of(a, j)) * static_cast<std::int16_t>(word_of(b, j));
      return sums.d[i] + static_cast<std::uint32_t>(sum);
    });
  }

  static constexpr bool kSignedCodes = false;
  static Quads load_quads(const void* p) { return static_cast<const std::uint8_t*>(p); }
  template <int kQuad>
  static Ints quad(Quads p) {
    return broadcast4(p + 4 * kQuad);
  }
  static Ints dot_codes(const Ints& sums, const Ints& codes, const Ints& quad) { return dot_bytes(sums, codes, quad); }
  static constexpr std::int32_t kStart = 0;
  static Ints start_sums() { return splat(kStart); }
  static Floats sums_to_floats(const Ints& sums) { return to_floats(sums); }
  static void to_memory(Floats&) {}

  static Floats to_floats(const Ints& v) {
    return floats([&](int i) { return static_cast<float>(static_cast<std::int32_t>(v.d[i])); });
  }
  static Floats add(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Floats subtract(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Floats multiply(const Floats& a, const Floats& b) {
    return floats([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return floats([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Floats fnma(const Floats& a, const Floats& b, const Floats& c) {
    return floats([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); });
  }

  template <int kFrom, int kCount>
  static Floats load_bits(const void* p) {
    return floats([&](int i) { return static_cast<float>(at<std::uint8_t>(p, i) >> kFrom & ((1 << kCount) - 1)); });
  }
  static Floats load_signed_bytes(const void* p) {
    return floats([&](int i) { return static_cast<float>(at<std::int8_t>(p, i)); });
  }
  static Floats load_f16(const void* p) {
    return floats([&](int i) { return f16_to_f32(at<std::uint16_t>(p, i)); });
  }
  static Floats load_bf16(const void* p) {
    return floats([&](int i) { return bf16_to_f32(at<std::uint16_t>(p, i)); });
  }
  template <int kByte>
  static Floats e4m3(const Ints& codes) {
    return floats([&](int i) { return 0x1p-120f * e4m3_value(static_cast<std::uint8_t>(codes.d[i] >> (8 * kByte))); });
  }
  static Floats load_half_exponents(const void* p) {
    return floats([&](int i) { return std::ldexp(1.0f, at<std::uint8_t>(p, i) - 128); });
  }

  static Ints pair_words(const Ints& v) {
    return words([&](int i) { return word_of(v, i / 2 + 16 * (i % 2)); });
  }
  static void widen_quads(const void* p, Ints (&out)[2]) {
    for (int j = 0; j < 2; ++j) out[j] = words([&](int i) { return at<std::int8_t>(p, i / 2 * 4 + 2 * j + i % 2); });
  }

  static Floats dot_bf16(const Floats& sums, const Ints& a, const Ints& b) {
    return floats([&](int i) {
      float sum = no_denormal(sums.v[i]);
      for (int j = 2 * i + 1; j >= 2 * i; --j)
        sum = no_denormal(std::fma(no_denormal(bf16_to_f32(word_of(a, j))), no_denormal(bf16_to_f32(word_of(b, j))), sum));
      return sum;
    });
  }
  static void save_bf16(void* p, const Floats& v) {
    for (int i = 0; i < 16; ++i) {
      const std::uint16_t half = f32_to_bf16(no_denormal(v.v[i]));
      std::memcpy(static_cast<std::uint8_t*>(p) + 2 * i, &half, 2);
    }
  }
};
static_assert(WordVectors512<Emulated512> && Bf16Vectors512<Emulated512>);

}  // namespace pumice::cpu::matrix
