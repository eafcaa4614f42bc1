// Reads weights of any format, eight neighbours of a row at a time: k is a multiple of 8. layout.h tells what lies where.
// `format` is always a specialisation constant, so the switches of formats.glsl fold away.
// Needs common.glsl. A shader with a second matrix defines SECOND_WEIGHTS as its binding.
#include "layout.h"

layout(set = 0, binding = 0) readonly buffer Weights { uint weights[]; };
#ifdef SECOND_WEIGHTS
layout(set = 0, binding = SECOND_WEIGHTS) readonly buffer Weights2 { uint weights2[]; };
uint weight_word(uint side, uint i) { return side == 0 ? weights[i] : weights2[i]; }
#else
uint weight_word(uint side, uint i) { return weights[i]; }
#endif

// Where the planes of a row begin, in which of the two matrices.
struct Row {
  uint side, codes, high, scales, supers;
};
uint code_word(Row row, uint i) { return weight_word(row.side, row.codes + i); }
uint high_word(Row row, uint i) { return weight_word(row.side, row.high + i); }
uint scale_word(Row row, uint i) { return weight_word(row.side, row.scales + i); }
uint super_word(Row row, uint i) { return weight_word(row.side, row.supers + i); }

// ---------------------------------------------------------------- codes: weights 0-3 and 4-7 as unsigned bytes
uvec2 four_bits(uint word) { return uvec2(word, word >> 4) & 0x0f0f0f0f; }
uvec2 two_bits(uint word, uint k) { return uvec2(word, word >> 2) >> (k / 8 % 2 * 4) & 0x03030303; }
uvec2 one_bit(uint word, uint k) { return uvec2(word, word >> 1) >> (k / 8 % 4 * 2) & 0x01010101; }

uvec2 codes_Q4_0(Row row, uint k) { return four_bits(code_word(row, k / 8)); }
uvec2 codes_Q4_1(Row row, uint k) { return codes_Q4_0(row, k); }
uvec2 codes_Q5_0(Row row, uint k) { return four_bits(code_word(row, k / 8)) | one_bit(high_word(row, k / 32), k) << 4; }
uvec2 codes_Q5_1(Row row, uint k) { return codes_Q5_0(row, k); }
uvec2 codes_Q8_0(Row row, uint k) { return uvec2(code_word(row, k / 4), code_word(row, k / 4 + 1)); }
uvec2 codes_Q2_K(Row row, uint k) { return two_bits(code_word(row, k / 16), k); }
uvec2 codes_Q3_K(Row row, uint k) { return two_bits(code_word(row, k / 16), k) | one_bit(high_word(row, k / 32), k) << 2; }
uvec2 codes_Q4_K(Row row, uint k) { return codes_Q4_0(row, k); }
uvec2 codes_Q5_K(Row row, uint k) { return codes_Q5_0(row, k); }
uvec2 codes_Q6_K(Row row, uint k) { return four_bits(code_word(row, k / 8)) | two_bits(high_word(row, k / 16), k) << 4; }
uvec2 codes_IQ4_NL(Row row, uint k) { return codes_Q4_0(row, k); }
uvec2 codes_IQ4_XS(Row row, uint k) { return codes_Q4_0(row, k); }
uvec2 codes_MXFP4(Row row, uint k) { return codes_Q4_0(row, k); }

// ---------------------------------------------------------------- (scale, minimum) of the eight weights at k
float half_at(uint word, uint odd) { return unpackHalf2x16(word >> odd * 16).x; }
float block_scale(Row row, uint k) { return half_at(scale_word(row, k / 64), k / 32 % 2); }
uint byte_at(uint word, uint i) { return word >> i % 4 * 8 & 255; }
float signed_byte_at(uint word, uint i) { return float(bitfieldExtract(int(word), int(i % 4 * 8), 8)); }

vec2 scale_Q4_0(Row row, uint k) { return vec2(1, -8) * block_scale(row, k); }
vec2 scale_Q4_1(Row row, uint k) { return unpackHalf2x16(scale_word(row, k / 32)); }
vec2 scale_Q5_0(Row row, uint k) { return vec2(1, -16) * block_scale(row, k); }
vec2 scale_Q5_1(Row row, uint k) { return scale_Q4_1(row, k); }
vec2 scale_Q8_0(Row row, uint k) { return vec2(block_scale(row, k), 0); }
vec2 scale_Q2_K(Row row, uint k) {
  const uint pair = byte_at(scale_word(row, k / 64), k / 16);
  return unpackHalf2x16(super_word(row, k / 256)) * vec2(pair & 15, -float(pair >> 4));
}
float sub_scale(Row row, uint k) {
  return half_at(super_word(row, k / 512), k / 256 % 2) * signed_byte_at(scale_word(row, k / 64), k / 16);
}
vec2 scale_Q3_K(Row row, uint k) { return vec2(1, -4) * sub_scale(row, k); }
vec2 scale_Q4_K(Row row, uint k) {
  const uint pair = scale_word(row, k / 64) >> k / 32 % 2 * 16;
  return unpackHalf2x16(super_word(row, k / 256)) * vec2(pair & 255, -float(pair >> 8 & 255));
}
vec2 scale_Q5_K(Row row, uint k) { return scale_Q4_K(row, k); }
vec2 scale_Q6_K(Row row, uint k) { return vec2(1, -32) * sub_scale(row, k); }
vec2 scale_IQ4_NL(Row row, uint k) { return vec2(block_scale(row, k), 0); }
vec2 scale_IQ4_XS(Row row, uint k) {
  return vec2(half_at(super_word(row, k / 512), k / 256 % 2) * signed_byte_at(scale_word(row, k / 128), k / 32), 0);
}
// Half of the power of two that an E8M0 byte stands for, as the table has twice the values of E2M1.
vec2 scale_MXFP4(Row row, uint k) {
  const uint e = byte_at(scale_word(row, k / 128), k / 32);
  return vec2(uintBitsToFloat(e < 2 ? 0x00200000 << e : e - 1 << 23), 0);
}

// ---------------------------------------------------------------- float formats
void floats_F32(Row row, uint k, out vec4 a, out vec4 b) {
  a = uintBitsToFloat(uvec4(code_word(row, k), code_word(row, k + 1), code_word(row, k + 2), code_word(row, k + 3)));
  b = uintBitsToFloat(uvec4(code_word(row, k + 4), code_word(row, k + 5), code_word(row, k + 6), code_word(row, k + 7)));
}
uvec4 eight_halves(Row row, uint k) {
  return uvec4(code_word(row, k / 2), code_word(row, k / 2 + 1), code_word(row, k / 2 + 2), code_word(row, k / 2 + 3));
}
void floats_F16(Row row, uint k, out vec4 a, out vec4 b) {
  const uvec4 words = eight_halves(row, k);
  a = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
  b = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
}
void floats_BF16(Row row, uint k, out vec4 a, out vec4 b) {
  const uvec4 words = eight_halves(row, k), low = words << 16, high = words & 0xffff0000;
  a = uintBitsToFloat(uvec4(low.x, high.x, low.y, high.y));
  b = uintBitsToFloat(uvec4(low.z, high.z, low.w, high.w));
}

#include "formats.glsl"

bool is_quantised(uint format) { return code_kind(format) != kFloat; }

uint plane_words(uint cols, uint per_word) { return per_word == 0 ? 0 : ((cols + 7 & ~7) + per_word - 1) / per_word + 3 & ~3; }
uint row_words(uint format, uint cols) {
  return plane_words(cols, codes_per_word(format)) + plane_words(cols, high_per_word(format)) + plane_words(cols, scales_per_word(format)) +
         plane_words(cols, supers_per_word(format));
}
// Row `i` of the matrix whose row 0 begins at word `at` of `side`'s binding.
Row row_at(uint format, uint side, uint at, uint i, uint cols) {
  Row row;
  row.side = side;
  row.codes = at + i * row_words(format, cols);
  row.high = row.codes + plane_words(cols, codes_per_word(format));
  row.scales = row.high + plane_words(cols, high_per_word(format));
  row.supers = row.scales + plane_words(cols, scales_per_word(format));
  return row;
}

// ---------------------------------------------------------------- codes to numbers
// Values of IQ4_NL and IQ4_XS (gguf-py quants.py, IQ4_NL.kvalues), and twice the values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5).
const float kNonLinearValues[16] = float[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const float kE2M1Values[16] = float[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

// The tables of both sides, in shared memory: 16 words lie in 16 banks, so lookups never collide.
shared float code_values[32];
bool has_table(uint format) { return code_kind(format) == kNonLinear || code_kind(format) == kE2M1; }
float table_value(uint format, uint i) { return code_kind(format) == kE2M1 ? kE2M1Values[i] : kNonLinearValues[i]; }
// Before the first code of the group is read; all lanes.
void prepare_codes(uint format, uint format2) {
  if (!has_table(format) && !has_table(format2)) return;
  if (LANE < 32) code_values[LANE] = table_value(LANE < 16 ? format : format2, LANE % 16);
  barrier();
}

uvec4 bytes_of(uint four) { return uvec4(four, four >> 8, four >> 16, four >> 24) & 255; }
ivec4 signed_bytes_of(uint four) {
  const int x = int(four);
  return ivec4(bitfieldExtract(x, 0, 8), bitfieldExtract(x, 8, 8), bitfieldExtract(x, 16, 8), x >> 24);
}
uint pack_bytes(ivec4 x) { return uint(x.x & 255 | (x.y & 255) << 8 | (x.z & 255) << 16 | x.w << 24); }

// Four codes as floats, before scale and minimum.
vec4 code_floats(uint format, uint side, uint four) {
  if (code_kind(format) == kSigned) return vec4(signed_bytes_of(four));
  const uvec4 code = bytes_of(four);
  if (!has_table(format)) return vec4(code);
  const uint t = side * 16;
  return vec4(code_values[t + code.x], code_values[t + code.y], code_values[t + code.z], code_values[t + code.w]);
}
// Four codes as signed bytes. Unsigned codes are below 64 and stay what they are.
uint code_bytes(uint format, uint side, uint four) { return has_table(format) ? pack_bytes(ivec4(code_floats(format, side, four))) : four; }

// The eight weights at k.
void weights_of(uint format, Row row, uint k, out vec4 a, out vec4 b) {
  if (is_quantised(format)) {
    const uvec2 codes = codes_of(format, row, k);
    const vec2 scale = scale_of(format, row, k);
    a = scale.x * code_floats(format, row.side, codes.x) + scale.y;
    b = scale.x * code_floats(format, row.side, codes.y) + scale.y;
  } else {
    floats_of(format, row, k, a, b);
  }
}
