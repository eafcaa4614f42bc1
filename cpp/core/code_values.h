// Tables of the values that the codes of weight formats stand for, for formats whose codes are not plain integers. shaders/weights.glsl has
// the same tables.
#pragma once

#include <cstdint>

namespace pumice {

// The type of a table, which has the value of each code. Each source file that includes this header has its own copies of the tables,
// because source files of different instruction sets must share no symbols (tests/cpp/cpu/isa_symbols.cmake).
using CodeValues = std::int8_t[16];

// The values of IQ4_NL and IQ4_XS (gguf-py quants.py, IQ4_NL.kvalues).
constexpr CodeValues kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), so that all are integers. Code 8 is minus zero in E2M1 and zero in
// this table, because integers have no minus zero.
constexpr CodeValues kE2m1Values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The next four tables have the values in the grids of ggml's IQ formats (ggml-common.h; gguf-py quants.py, grid_map). Codes of IQ1_E and
// IQ2_E have 3 bits, the other codes 4 bits.

// The values of IQ1_E, to which IQ1_S and IQ1_M are converted. With g = -1, 0, 1, the values are 8 (g + 1/8) if bit 2 of the code is 0, and
// 8 (g - 1/8) if bit 2 is 1.
constexpr CodeValues kIq1Values = {-7, 1, 9, 0, -9, -1, 7, 0};
// The values of IQ2_E, to which IQ2_XXS, IQ2_XS and IQ2_S are converted. Bit 2 of the code is the sign.
constexpr CodeValues kIq2Values = {8, 25, 43, 0, -8, -25, -43, 0};
// The values of IQ3_XXS_E, to which IQ3_XXS is converted. They are half of the values in the grid. Bit 3 of the code is the sign.
constexpr CodeValues kIq3XxsValues = {2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};
// The values of IQ3_S_E, to which IQ3_S is converted. Bit 3 of the code is the sign.
constexpr CodeValues kIq3SValues = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};

// Returns the value of a code of F8_E4M3 (OCP 8-bit Floating Point Specification 1.0). A code has a sign bit, 4 bits of exponent with the
// bias 7, and 3 bits of mantissa. The function shifts the exponent and the mantissa to their positions in a float. This float is 2^-120
// times the value, so it is multiplied by 2^120. The codes 0x7f and 0xff mean NaN, but give 480 and -480 here, because check_finite()
// refuses weights with these codes.
[[maybe_unused]] static float e4m3_value(std::uint8_t code) {
  return 0x1p120f *
         __builtin_bit_cast(float, static_cast<std::uint32_t>(code & 0x80) << 24 | static_cast<std::uint32_t>(code & 0x7f) << 20);
}

}  // namespace pumice
