// The layout of a weight matrix's rows on a device. One table serves the packer (cpp/vulkan/layout.cpp) and the shaders (weights.glsl).
// A row has up to four planes of 32-bit words, each padded with zeros to a multiple of 4 words. Columns are padded to a multiple of 16.
// The table says how many weights share a word of each plane (0 if there is no such plane), and what a code means.
//   codes, high: B bits per weight, 32 / B weights per word. Weight i of a word is at bit 8 (i % 4) + B (i / 4), so that a shift and a mask
//                yield four neighbouring weights as the bytes of a word, as conversions and 4 x 8-bit dot products need them. `high` has
//                the upper bits.
//   scales:      for 32-weight blocks an f16 scale, or a pair (scale, minimum) of f16, or (MXFP4) the exponent's byte.
//                For K-quants signed or unsigned bytes, one per sub-block of 16 or 32; for Q4_K and Q5_K pairs of bytes (scale, minimum).
//   supers:      the f16 factor of the scales in 256 weights, or a pair (factor of the scales, factor of the minima).
// weight = scale * code + minimum, without rounding, because codes are small integers and scales have at most 19 bits.
#ifndef PUMICE_SHADERS_LAYOUT_H
#define PUMICE_SHADERS_LAYOUT_H

#ifdef __cplusplus
#include <cstdint>
namespace pumice::vulkan::layouts {
using uint = std::uint32_t;
#define PUMICE_CONSTANT inline constexpr uint
#else
#define PUMICE_CONSTANT const uint
#endif

// A code is a float itself, an unsigned or a signed byte, or the index of a value in a table.
PUMICE_CONSTANT kFloat = 0, kUnsigned = 1, kSigned = 2, kNonLinear = 3, kE2M1 = 4;

#define PUMICE_LAYOUT(name, code, codes, high, scales, supers) \
  PUMICE_CONSTANT kCode_##name = code, kCodes_##name = codes, kHigh_##name = high, kScales_##name = scales, kSupers_##name = supers

PUMICE_LAYOUT(F32, kFloat, 1, 0, 0, 0);
PUMICE_LAYOUT(F16, kFloat, 2, 0, 0, 0);
PUMICE_LAYOUT(BF16, kFloat, 2, 0, 0, 0);
PUMICE_LAYOUT(Q4_0, kUnsigned, 8, 0, 64, 0);
PUMICE_LAYOUT(Q4_1, kUnsigned, 8, 0, 32, 0);
PUMICE_LAYOUT(Q5_0, kUnsigned, 8, 32, 64, 0);
PUMICE_LAYOUT(Q5_1, kUnsigned, 8, 32, 32, 0);
PUMICE_LAYOUT(Q8_0, kSigned, 4, 0, 64, 0);
PUMICE_LAYOUT(Q2_K, kUnsigned, 16, 0, 64, 256);
PUMICE_LAYOUT(Q3_K, kUnsigned, 16, 32, 64, 512);
PUMICE_LAYOUT(Q4_K, kUnsigned, 8, 0, 64, 256);
PUMICE_LAYOUT(Q5_K, kUnsigned, 8, 32, 64, 256);
PUMICE_LAYOUT(Q6_K, kUnsigned, 8, 16, 64, 512);
PUMICE_LAYOUT(IQ4_NL, kNonLinear, 8, 0, 64, 0);
PUMICE_LAYOUT(IQ4_XS, kNonLinear, 8, 0, 128, 512);
PUMICE_LAYOUT(MXFP4, kE2M1, 8, 0, 128, 0);
#undef PUMICE_LAYOUT

#ifdef __cplusplus
}  // namespace pumice::vulkan::layouts
#endif
#undef PUMICE_CONSTANT
#endif
