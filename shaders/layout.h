// The layout of a weight matrix's rows on a device. Both the packer (cpp/vulkan/layout.cpp) and the shaders (weights.glsl) use the table
// below. A row has up to four planes of 32-bit words: codes, high, scales and supers. Its columns are padded to a multiple of 16, and each
// plane is padded with zeros to a multiple of 4 words. For each format, the table says what kind of codes it has, and how many weights
// share a word of each plane (0 if the format has no such plane).

// codes: each weight has B bits, so a word has 32 / B weights. Weight i of a word is at bit 8 (i % 4) + B (i / 4). A shift and a mask yield
//   four neighbouring codes as the bytes of a word, which is the form that conversions to float and dot products of 4 x 8 bits need.
// high: the upper bits of codes that have more bits than `codes` holds, in the same layout.
// scales: one of the following.
//   Blocks of 32 weights with an f16 scale, a pair (scale, minimum) of f16, an exponent of one byte (MXFP4), or two float scales (NVFP4_E).
//   Blocks of 128 weights with a float scale (F8_E4M3) or an f16 scale (A4).
//   Sub-blocks of 16 or 32 weights with a signed byte (Q3_K, Q6_K, the IQ formats with supers), a byte with 4 bits of scale and 4 bits of
//   minimum (Q2_K), or a pair of bytes (scale, minimum) (Q4_K, Q5_K).
// supers: only in K-quants, IQ formats other than IQ4_NL, and A4. Each 256 weights have an f16 factor for their scales, or a pair of f16
//   factors for scales and minima. In A4, each 128 weights have a byte with their zero point.

// weight = scale * code + minimum. The product is exact in float, because codes are small integers and scales have at most 19 bits. Only in
// NVFP4_E and F8_E4M3 is it rounded, because their float scales have 24 bits.
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

// The kinds of codes. A code is a float (in F8_E4M3, a float of 8 bits that is multiplied by a scale), an unsigned byte, a signed byte, or
// an index into a table of cpp/core/code_values.h. kNonLinear uses the table kIq4Values, and each kind after it uses the table of its name,
// such as kE2M1Values.
PUMICE_CONSTANT kFloat = 0, kUnsigned = 1, kSigned = 2, kNonLinear = 3, kE2M1 = 4, kIq1 = 5, kIq2 = 6, kIq3Xxs = 7, kIq3S = 8;

#define PUMICE_LAYOUT(name, code, codes, high, scales, supers) \
  PUMICE_CONSTANT kCode_##name = code, kCodes_##name = codes, kHigh_##name = high, kScales_##name = scales, kSupers_##name = supers

PUMICE_LAYOUT(F32, kFloat, 1, 0, 0, 0);
PUMICE_LAYOUT(F16, kFloat, 2, 0, 0, 0);
PUMICE_LAYOUT(BF16, kFloat, 2, 0, 0, 0);
PUMICE_LAYOUT(F8_E4M3, kFloat, 4, 0, 128, 0);
PUMICE_LAYOUT(A4, kUnsigned, 8, 0, 256, 512);
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
PUMICE_LAYOUT(IQ1_E, kIq1, 16, 32, 64, 512);
PUMICE_LAYOUT(IQ2_E, kIq2, 16, 32, 64, 512);
PUMICE_LAYOUT(IQ3_XXS_E, kIq3Xxs, 8, 0, 128, 512);
PUMICE_LAYOUT(IQ3_S_E, kIq3S, 8, 0, 128, 512);
PUMICE_LAYOUT(NVFP4_E, kE2M1, 8, 0, 16, 0);
PUMICE_LAYOUT(MXFP4, kE2M1, 8, 0, 128, 0);
#undef PUMICE_LAYOUT

#ifdef __cplusplus
}  // namespace pumice::vulkan::layouts
#endif
#undef PUMICE_CONSTANT
#endif
