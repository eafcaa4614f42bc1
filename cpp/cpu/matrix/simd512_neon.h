// Vectors of 512 bits as four registers of 64-bit ARM with the dot product instructions (Armv8.2 dotprod). Vectors512 in simd512.h
// describes the operations. The operations are always inlined; simd512_native.h gives the reason.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/matrix/simd512.h"
#include "cpu/matrix/tiles_neon.h"

#define PUMICE_OPERATION [[gnu::always_inline]] static

namespace pumice::cpu::matrix {

struct NeonDot {
  struct Ints {
    uint8x16_t v[4];
  };
  struct Floats {
    float32x4_t v[4];
  };
  using Quads = int8x16_t;
  // Quad kQuad of the four quads in `quads`. It need not be broadcast, because SDOT can multiply all dwords of a register by one dword of
  // another register.
  template <int kQuad>
  struct Quad {
    int8x16_t quads;
  };
  // Integer tiles of 16 rows by 4 tokens use 16 registers for sums, 4 for weights and 4 for activations. Tiles of 6 tokens would spill
  // registers.
  static constexpr TileSizes kSizes{.groups = 1, .tokens = 4, .tokens_two_subs = 4, .few_tokens = 4, .float_tokens = 6};

  PUMICE_OPERATION Ints load(const void* p) {
    return each<Ints>([p](int i) { return vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * i); });
  }
  PUMICE_OPERATION void save(void* p, Ints v) {
    for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<std::uint8_t*>(p) + 16 * i, v.v[i]);
  }
  PUMICE_OPERATION Floats load_floats(const float* p) {
    return each<Floats>([p](int i) { return vld1q_f32(p + 4 * i); });
  }
  PUMICE_OPERATION void save_floats(float* p, Floats v) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.v[i]);
  }
  PUMICE_OPERATION Floats load_first(const float* p, std::int64_t lanes) {
    if (lanes == 16) return load_floats(p);
    float all[16] = {};
    __builtin_memcpy(all, p, static_cast<std::size_t>(lanes) * sizeof(float));
    return load_floats(all);
  }
  PUMICE_OPERATION void save_first(float* p, Floats v, std::int64_t lanes) {
    if (lanes == 16) return save_floats(p, v);
    float all[16];
    save_floats(all, v);
    __builtin_memcpy(p, all, static_cast<std::size_t>(lanes) * sizeof(float));
  }
  PUMICE_OPERATION void load_pairs(const std::int32_t* p, std::int64_t count, Ints (&out)[2]) {
    std::int32_t all[32] = {};
    __builtin_memcpy(all, p, 2 * static_cast<std::size_t>(count) * sizeof(std::int32_t));
    for (int i = 0; i < 4; ++i) {
      const int32x4x2_t pairs = vld2q_s32(all + 8 * i);
      out[0].v[i] = u8(pairs.val[0]);
      out[1].v[i] = u8(pairs.val[1]);
    }
  }
  PUMICE_OPERATION Ints load_as_quads(const void* p) {
    const uint8x16_t in_order = vld1q_u8(static_cast<const std::uint8_t*>(p));
    const uint8x16_t low = vzip1q_u8(in_order, in_order), high = vzip2q_u8(in_order, in_order);
    return {{vzip1q_u8(low, low), vzip2q_u8(low, low), vzip1q_u8(high, high), vzip2q_u8(high, high)}};
  }
  PUMICE_OPERATION void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
  PUMICE_OPERATION void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

  PUMICE_OPERATION Ints broadcast4(const void* p) {
    std::int32_t dword;
    __builtin_memcpy(&dword, p, 4);
    return splat(dword);
  }
  PUMICE_OPERATION Floats broadcast_float(const float* p) { return splat(*p); }
  PUMICE_OPERATION Ints splat(std::int32_t v) {
    return each<Ints>([v](int) { return u8(vdupq_n_s32(v)); });
  }
  PUMICE_OPERATION Ints splat_bytes(int v) {
    return each<Ints>([v](int) { return vdupq_n_u8(static_cast<std::uint8_t>(v)); });
  }
  PUMICE_OPERATION Floats splat(float v) {
    return each<Floats>([v](int) { return vdupq_n_f32(v); });
  }
  PUMICE_OPERATION Floats zero_floats() { return splat(0.0f); }

  PUMICE_OPERATION Ints bit_and(Ints a, Ints b) {
    return each<Ints>([&](int i) { return vandq_u8(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Ints bit_or(Ints a, Ints b) {
    return each<Ints>([&](int i) { return vorrq_u8(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Ints bit_xor(Ints a, Ints b) {
    return each<Ints>([&](int i) { return veorq_u8(a.v[i], b.v[i]); });
  }
  // The instructions shift each byte by itself, so no mask is needed if the bits end at the highest bit of a byte.
  template <int kFrom, int kCount, int kTo>
  PUMICE_OPERATION Ints bits(Ints v) {
    return each<Ints>([&](int i) {
      uint8x16_t bytes = v.v[i];
      if constexpr (kTo > kFrom) bytes = vshlq_n_u8(bytes, kTo - kFrom);
      if constexpr (kTo < kFrom) bytes = vshrq_n_u8(bytes, kFrom - kTo);
      if constexpr (kFrom + kCount == 8 && kTo == 0) return bytes;
      return vandq_u8(bytes, vdupq_n_u8(((1 << kCount) - 1) << kTo));
    });
  }
  PUMICE_OPERATION Ints add_dwords(Ints a, Ints b) {
    return each<Ints>([&](int i) { return u8(vaddq_s32(s32(a, i), s32(b, i))); });
  }
  PUMICE_OPERATION Ints multiply_dwords(Ints a, Ints b) {
    return each<Ints>([&](int i) { return u8(vmulq_s32(s32(a, i), s32(b, i))); });
  }
  PUMICE_OPERATION Ints add_bytes(Ints a, Ints b) {
    return each<Ints>([&](int i) { return vaddq_u8(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Ints subtract_bytes(Ints a, Ints b) {
    return each<Ints>([&](int i) { return vsubq_u8(a.v[i], b.v[i]); });
  }
  template <int kByte>
  PUMICE_OPERATION Ints signed_byte(Ints v) {
    return each<Ints>([&](int i) { return u8(vshrq_n_s32(vshlq_n_s32(s32(v, i), 24 - 8 * kByte), 24)); });
  }
  PUMICE_OPERATION Ints look_up(const std::int8_t (&table)[16], int add, Ints codes) {
    const uint8x16_t all = vaddq_u8(vreinterpretq_u8_s8(vld1q_s8(table)), vdupq_n_u8(static_cast<std::uint8_t>(add)));
    return each<Ints>([&](int i) { return vqtbl1q_u8(all, codes.v[i]); });
  }

  static constexpr bool kSignedCodes = true;
  PUMICE_OPERATION Quads load_quads(const void* p) { return vld1q_s8(static_cast<const std::int8_t*>(p)); }
  template <int kQuad>
  PUMICE_OPERATION Quad<kQuad> quad(Quads quads) {
    return {quads};
  }
  template <int kQuad>
  PUMICE_OPERATION Ints dot_codes(Ints sums, Ints codes, Quad<kQuad> quad) {
    return each<Ints>([&](int i) { return u8(vdotq_laneq_s32(s32(sums, i), vreinterpretq_s8_u8(codes.v[i]), quad.quads, kQuad)); });
  }
  static constexpr std::int32_t kStart = kSumStart;
  PUMICE_OPERATION Ints start_sums() {
    return each<Ints>([](int) { return u8(start_sum()); });
  }
  PUMICE_OPERATION Floats sums_to_floats(Ints sums) {
    return each<Floats>([&](int i) { return small_sums(s32(sums, i)); });
  }

  PUMICE_OPERATION void to_memory(Floats& f) {
    for (float32x4_t& v : f.v) asm("" : "+m"(v));
  }

  PUMICE_OPERATION Floats to_floats(Ints v) {
    return each<Floats>([&](int i) { return vcvtq_f32_s32(s32(v, i)); });
  }
  PUMICE_OPERATION Floats add(Floats a, Floats b) {
    return each<Floats>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Floats subtract(Floats a, Floats b) {
    return each<Floats>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Floats multiply(Floats a, Floats b) {
    return each<Floats>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Floats fma(Floats a, Floats b, Floats c) {
    return each<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  PUMICE_OPERATION Floats fnma(Floats a, Floats b, Floats c) {
    return each<Floats>([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
  }

  PUMICE_OPERATION Ints load_unsigned_bytes(const void* p) {
    const uint8x16_t bytes = vld1q_u8(static_cast<const std::uint8_t*>(p));
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {{vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_u8_u32(vmovl_high_u16(low)),
             vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_u8_u32(vmovl_high_u16(high))}};
  }
  template <int kFrom, int kCount>
  PUMICE_OPERATION Floats load_bits(const void* p) {
    uint8x16_t bytes = vld1q_u8(static_cast<const std::uint8_t*>(p));
    if constexpr (kFrom > 0) bytes = vshrq_n_u8(bytes, kFrom > 0 ? kFrom : 1);
    if constexpr (kFrom + kCount < 8) bytes = vandq_u8(bytes, vdupq_n_u8((1 << kCount) - 1));
    return byte_floats(bytes, 0);
  }
  PUMICE_OPERATION Floats load_signed_bytes(const void* p) {
    return byte_floats(veorq_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)), vdupq_n_u8(0x80)), 128);
  }
  PUMICE_OPERATION Floats load_f16(const void* p) {
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    const float16x8_t low = vreinterpretq_f16_u8(vld1q_u8(bytes)), high = vreinterpretq_f16_u8(vld1q_u8(bytes + 16));
    return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)}};
  }
  PUMICE_OPERATION Floats load_bf16(const void* p) {
    // ZIP converts the words to floats. SHLL could also do this, but it runs only on every second pipe of Neoverse cores, and ZIP on every
    // pipe.
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(bytes)), high = vreinterpretq_u16_u8(vld1q_u8(bytes + 16)), zero = vdupq_n_u16(0);
    return {{vreinterpretq_f32_u16(vzip1q_u16(zero, low)), vreinterpretq_f32_u16(vzip2q_u16(zero, low)),
             vreinterpretq_f32_u16(vzip1q_u16(zero, high)), vreinterpretq_f32_u16(vzip2q_u16(zero, high))}};
  }
  template <int kByte>
  PUMICE_OPERATION Floats e4m3(const Ints& codes) {
    return each<Floats>([&](int i) {
      const int32x4_t top = kByte == 3 ? s32(codes, i) : vshlq_n_s32(s32(codes, i), kByte == 3 ? 0 : 24 - 8 * kByte);
      return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(vshrq_n_s32(top, 4)), vdupq_n_u32(0x87f00000)));
    });
  }
  PUMICE_OPERATION Floats load_half_exponents(const void* p) {
    const Ints e = load_unsigned_bytes(p);
    return each<Floats>([&](int i) {
      const uint32x4_t x = vreinterpretq_u32_u8(e.v[i]);
      const uint32x4_t normal = vshlq_n_u32(vsubq_u32(x, vdupq_n_u32(1)), 23);
      const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(x));
      return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(x, vdupq_n_u32(2)), tiny, normal));
    });
  }

 private:
  // Returns bytes - offset as floats. The bits of the float 2^23 + n are 0x4B000000 + n. ZIP makes these bits, and one subtraction gives
  // the result. ZIP runs on every pipe of Neoverse cores. The instructions that widen and convert integers run only on some pipes, and
  // conversions take two cycles.
  PUMICE_OPERATION Floats byte_floats(uint8x16_t bytes, int offset) {
    const uint8x16_t zero = vdupq_n_u8(0);
    const uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(bytes, zero)), high = vreinterpretq_u16_u8(vzip2q_u8(bytes, zero));
    const uint16x8_t exponent = vdupq_n_u16(0x4B00);
    const float32x4_t base = vdupq_n_f32(static_cast<float>((1 << 23) + offset));
    const auto converted = [&](uint16x8_t bits) { return vsubq_f32(vreinterpretq_f32_u16(bits), base); };
    return {{converted(vzip1q_u16(low, exponent)), converted(vzip2q_u16(low, exponent)), converted(vzip1q_u16(high, exponent)),
             converted(vzip2q_u16(high, exponent))}};
  }
  template <class To, class F>
  PUMICE_OPERATION To each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  PUMICE_OPERATION int32x4_t s32(const Ints& v, int i) { return vreinterpretq_s32_u8(v.v[i]); }
  PUMICE_OPERATION uint8x16_t u8(int32x4_t v) { return vreinterpretq_u8_s32(v); }
};
static_assert(Vectors512<NeonDot>);

}  // namespace pumice::cpu::matrix

#undef PUMICE_OPERATION
