// Loads weights of any format in the layout of layout.h. Most functions load the sixteen weights of columns k to k + 15, where k is a
// multiple of 16. Sixteen is the size of the smallest sub-block of any format.
// `format` is always a specialisation constant, so a driver's compiler removes the switches of formats.glsl.
// A shader includes common.glsl before this file. A shader with a second matrix defines SECOND_WEIGHTS as the binding of that matrix.
#include "layout.h"

layout(set = 0, binding = 0) readonly buffer Weights { uint weights[]; };
layout(set = 0, binding = 0) readonly buffer WeightPairs { uvec2 weight_pairs[]; };
layout(set = 0, binding = 0) readonly buffer WeightQuads { uvec4 weight_quads[]; };
#ifdef SECOND_WEIGHTS
layout(set = 0, binding = SECOND_WEIGHTS) readonly buffer Weights2 { uint weights2[]; };
layout(set = 0, binding = SECOND_WEIGHTS) readonly buffer WeightPairs2 { uvec2 weight_pairs2[]; };
layout(set = 0, binding = SECOND_WEIGHTS) readonly buffer WeightQuads2 { uvec4 weight_quads2[]; };
uint word_at(uint side, uint i) { return side == 0 ? weights[i] : weights2[i]; }
uvec2 pair_at(uint side, uint i) { return side == 0 ? weight_pairs[i / 2] : weight_pairs2[i / 2]; }
uvec4 quad_at(uint side, uint i) { return side == 0 ? weight_quads[i / 4] : weight_quads2[i / 4]; }
#else
uint word_at(uint side, uint i) { return weights[i]; }
uvec2 pair_at(uint side, uint i) { return weight_pairs[i / 2]; }
uvec4 quad_at(uint side, uint i) { return weight_quads[i / 4]; }
#endif

// A row of a matrix. codes, high, scales and supers are the indices of the words at which its planes begin (layout.h). `side` is 0 for the
// first matrix and 1 for the second.
struct Row {
  uint side, codes, high, scales, supers;
};
uint high_word(Row row, uint i) { return word_at(row.side, row.high + i); }
uint scale_word(Row row, uint i) { return word_at(row.side, row.scales + i); }
uint super_word(Row row, uint i) { return word_at(row.side, row.supers + i); }

// ---------------------------------------------------------------- codes
// codes_NAME() returns sixteen codes, one per byte. Component i of the result has the codes of weights 4 i to 4 i + 3.
uvec4 four_bits(uvec2 words) { return uvec4(words.x, words.x >> 4, words.y, words.y >> 4) & 0x0f0f0f0f; }
uvec4 two_bits(uint word) { return uvec4(word, word >> 2, word >> 4, word >> 6) & 0x03030303; }
uvec4 one_bit(uint word, uint k) { return uvec4(word, word >> 1, word >> 2, word >> 3) >> (k / 16 % 2 * 4) & 0x01010101; }
uvec4 bytes_of(uint four) { return uvec4(four, four >> 8, four >> 16, four >> 24) & 255; }

uvec4 codes_Q4_0(Row row, uint k) { return four_bits(pair_at(row.side, row.codes + k / 8)); }
uvec4 codes_A4(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_Q4_1(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_Q5_0(Row row, uint k) { return codes_Q4_0(row, k) | one_bit(high_word(row, k / 32), k) << 4; }
uvec4 codes_Q5_1(Row row, uint k) { return codes_Q5_0(row, k); }
uvec4 codes_Q8_0(Row row, uint k) { return quad_at(row.side, row.codes + k / 4); }
uvec4 codes_Q2_K(Row row, uint k) { return two_bits(word_at(row.side, row.codes + k / 16)); }
uvec4 codes_Q3_K(Row row, uint k) { return codes_Q2_K(row, k) | one_bit(high_word(row, k / 32), k) << 2; }
uvec4 codes_Q4_K(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_Q5_K(Row row, uint k) { return codes_Q5_0(row, k); }
uvec4 codes_Q6_K(Row row, uint k) { return codes_Q4_0(row, k) | two_bits(high_word(row, k / 16)) << 4; }
uvec4 codes_IQ4_NL(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_IQ4_XS(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_IQ1_E(Row row, uint k) { return codes_Q3_K(row, k); }
uvec4 codes_IQ2_E(Row row, uint k) { return codes_Q3_K(row, k); }
uvec4 codes_IQ3_XXS_E(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_IQ3_S_E(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_NVFP4_E(Row row, uint k) { return codes_Q4_0(row, k); }
uvec4 codes_MXFP4(Row row, uint k) { return codes_Q4_0(row, k); }

// ---------------------------------------------------------------- scales
// scale_NAME() returns (scale, minimum) of the sixteen weights from column k on.
float half_at(uint word, uint odd) { return unpackHalf2x16(word >> odd * 16).x; }
float block_scale(Row row, uint k) { return half_at(scale_word(row, k / 64), k / 32 % 2); }
uint byte_at(uint word, uint i) { return word >> i % 4 * 8 & 255; }
float signed_byte_at(uint word, uint i) { return float(bitfieldExtract(int(word), int(i % 4 * 8), 8)); }

vec2 scale_Q4_0(Row row, uint k) { return vec2(1, -8) * block_scale(row, k); }
vec2 scale_A4(Row row, uint k) {
  return vec2(1, -float(byte_at(super_word(row, k / 512), k / 128))) * half_at(scale_word(row, k / 256), k / 128 % 2);
}
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
vec2 scale_IQ1_E(Row row, uint k) { return vec2(0.125 * sub_scale(row, k), 0); }
vec2 scale_IQ2_E(Row row, uint k) { return scale_IQ1_E(row, k); }
vec2 scale_IQ3_XXS_E(Row row, uint k) { return 0.5 * scale_IQ4_XS(row, k); }
vec2 scale_IQ3_S_E(Row row, uint k) { return scale_IQ4_XS(row, k); }
vec2 scale_NVFP4_E(Row row, uint k) { return vec2(uintBitsToFloat(scale_word(row, k / 16)), 0); }
// The scale is half of the power of two that the E8M0 byte stands for, because kE2M1Values has twice the values of E2M1.
vec2 scale_MXFP4(Row row, uint k) {
  const uint e = byte_at(scale_word(row, k / 128), k / 32);
  return vec2(uintBitsToFloat(e < 2 ? 0x00200000 << e : e - 1 << 23), 0);
}

// ---------------------------------------------------------------- float formats
// floats_NAME() loads the sixteen weights from column k on. float_NAME() returns the weight of any column k.
void floats_F32(Row row, uint k, out vec4 w[4]) {
  [[unroll]] for (uint i = 0; i < 4; ++i) w[i] = uintBitsToFloat(quad_at(row.side, row.codes + k + 4 * i));
}
float float_F32(Row row, uint k) { return uintBitsToFloat(word_at(row.side, row.codes + k)); }

void floats_F16(Row row, uint k, out vec4 w[4]) {
  [[unroll]] for (uint i = 0; i < 2; ++i) {
    const uvec4 words = quad_at(row.side, row.codes + k / 2 + 4 * i);
    w[2 * i] = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    w[2 * i + 1] = vec4(unpackHalf2x16(words.z), unpackHalf2x16(words.w));
  }
}
float float_F16(Row row, uint k) { return half_at(word_at(row.side, row.codes + k / 2), k % 2); }

void floats_BF16(Row row, uint k, out vec4 w[4]) {
  [[unroll]] for (uint i = 0; i < 2; ++i) {
    const uvec4 words = quad_at(row.side, row.codes + k / 2 + 4 * i);
    const vec4 even = uintBitsToFloat(words << 16), odd = uintBitsToFloat(words & 0xffff0000);
    w[2 * i] = vec4(even.x, odd.x, even.y, odd.y);
    w[2 * i + 1] = vec4(even.z, odd.z, even.w, odd.w);
  }
}
float float_BF16(Row row, uint k) { return uintBitsToFloat(word_at(row.side, row.codes + k / 2) >> k % 2 * 16 << 16); }

// Returns the values of four F8_E4M3 codes. The exponent's bias is 7 in F8_E4M3 and 127 in a float. If the exponent is 0, the value is
// mantissa * 2^-9.
vec4 e4m3_values(uvec4 codes) {
  const uvec4 sizes = codes & 127;
  const vec4 values = mix(vec4(sizes) * 0.001953125, uintBitsToFloat((sizes << 20) + (120u << 23)), greaterThan(sizes, uvec4(7)));
  return uintBitsToFloat(floatBitsToUint(values) | (codes & 128) << 24);
}
void floats_F8_E4M3(Row row, uint k, out vec4 w[4]) {
  const uvec4 words = quad_at(row.side, row.codes + k / 4);
  const float scale = uintBitsToFloat(scale_word(row, k / 128));
  [[unroll]] for (uint i = 0; i < 4; ++i) w[i] = scale * e4m3_values(bytes_of(words[i]));
}
float float_F8_E4M3(Row row, uint k) {
  return uintBitsToFloat(scale_word(row, k / 128)) * e4m3_values(uvec4(byte_at(word_at(row.side, row.codes + k / 4), k))).x;
}

#include "formats.glsl"

bool is_quantized(uint format) { return code_kind(format) != kFloat; }

uint plane_words(uint cols, uint per_word) { return per_word == 0 ? 0 : ((cols + 15 & ~15) + per_word - 1) / per_word + 3 & ~3; }
uint row_words(uint format, uint cols) {
  return plane_words(cols, codes_per_word(format)) + plane_words(cols, high_per_word(format)) + plane_words(cols, scales_per_word(format)) +
         plane_words(cols, supers_per_word(format));
}
// Returns row `i` of a matrix. The matrix begins at word `at` of the binding for `side`.
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
// The tables of cpp/core/code_values.h, in the order of the kinds from kNonLinear on (layout.h).
const float kTables[6][16] = float[][](float[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
                                       float[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
                                       float[](-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                                       float[](8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                                       float[](2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31),
                                       float[](1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15));

// The tables for the formats of the first and the second matrix, in shared memory. The 16 words of a table lie in 16 different banks, so
// lookups cause no bank conflicts.
shared float code_values[32];
bool has_table(uint format) { return code_kind(format) >= kNonLinear; }
float table_value(uint format, uint i) { return kTables[has_table(format) ? code_kind(format) - kNonLinear : 0][i]; }
// Fills code_values. All lanes must call this before any lane looks up a code.
void prepare_codes(uint format, uint format2) {
  if (!has_table(format) && !has_table(format2)) return;
  if (LANE < 32) code_values[LANE] = table_value(LANE < 16 ? format : format2, LANE % 16);
  barrier();
}

ivec4 signed_bytes_of(uint four) {
  const int x = int(four);
  return ivec4(bitfieldExtract(x, 0, 8), bitfieldExtract(x, 8, 8), bitfieldExtract(x, 16, 8), x >> 24);
}
uint pack_bytes(ivec4 x) { return uint(x.x & 255 | (x.y & 255) << 8 | (x.z & 255) << 16 | x.w << 24); }

// Returns the values of the four codes in a word as floats, without scale and minimum.
vec4 code_floats(uint format, uint side, uint four) {
  if (code_kind(format) == kSigned) return vec4(signed_bytes_of(four));
  const uvec4 code = bytes_of(four);
  if (!has_table(format)) return vec4(code);
  const uint t = side * 16;
  return vec4(code_values[t + code.x], code_values[t + code.y], code_values[t + code.z], code_values[t + code.w]);
}
// Returns the values of sixteen codes as signed bytes. Unsigned codes are below 64, so as signed bytes they are the same.
uvec4 code_bytes(uint format, uint side, uvec4 codes) {
  if (has_table(format)) {
    [[unroll]] for (uint i = 0; i < 4; ++i) codes[i] = pack_bytes(ivec4(code_floats(format, side, codes[i])));
  }
  return codes;
}

// Computes the sixteen weights from column k on, in any format.
void weights_of(uint format, Row row, uint k, out vec4 w[4]) {
  if (is_quantized(format)) {
    const uvec4 codes = codes_of(format, row, k);
    const vec2 scale = scale_of(format, row, k);
    [[unroll]] for (uint i = 0; i < 4; ++i) w[i] = scale.x * code_floats(format, row.side, codes[i]) + scale.y;
  } else {
    floats_of(format, row, k, w);
  }
}
