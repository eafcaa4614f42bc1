// How the rows of a weight matrix lie on a device: one table for the packer (cpp/vulkan/layout.cpp) and for the shaders (weights.glsl).
// A row is up to four planes of 32-bit words, each padded with zeros to a multiple of 4 words; columns are padded to one of 16.
// The table says how many weights share a word of each plane (0: no such plane), and what a code means.
//   codes, high: B bits a weight, 32 / B weights a word, weight i of them at bit 8 (i % 4) + B (i / 4): a shift and a mask then give four
//                neighbouring weights as the bytes of a word, as conversions and 4 x 8-bit dot products take them. `high` has the upper
//                bits.
//   scales:      32-weight blocks: an f16 scale, or a pair (scale, minimum) of f16, or (MXFP4) the exponent's byte.
//                K-quants: signed or unsigned bytes, one a sub-block of 16 or 32; Q4_K and Q5_K: pairs of bytes (scale, minimum).
//   supers:      f16 factor of the scales in 256 weights, or the pair (of scales, of minima).
// weight = scale * code + minimum, and exactly so: codes are small integers, scales at most 19 bits.
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

// What a code is: a float itself, an unsigned or a signed byte, or the number of a value in a table.
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
