// The code of linear.glsl, and functions that load activations from binding 1, which has the output of quantize.comp. Sixteen columns are
// multiplied at a time, because sixteen is the size of the smallest sub-block of any format.
#include "linear.glsl"

layout(set = 0, binding = 1) readonly buffer InCodes { uvec4 x_codes[]; };
layout(set = 0, binding = 1) readonly buffer InScales { float x_scales[]; };

// activation_row() returns the index, in words of binding 1, at which the activations for row i of the tile begin. The other functions take
// this index as `row`, and a column of the matrix as k.
uint activation_row(uint i) { return p.in_at + in_row(i) * p.in_stride; }
uvec4 activation_codes(uint row, uint k) { return x_codes[(row + (in_column() + k) / 4) / 4]; }
float activation_scale(uint row, uint k) {
  const uint in_cols = ROWS == kRowsOfHeads ? (p.matrices - 1) * p.in_step + p.cols : p.cols;
  return x_scales[row + in_cols / 4 + (in_column() + k) / 32];
}

// packed_dot() returns the dot product of two words, each of which holds four signed bytes. glslang 13 has no GL_EXT_integer_dot_product,
// so packed_dot() is declared as the SPIR-V instruction OpSDot (4450) with the capabilities DotProduct (6019) and
// DotProductInput4x8BitPacked (6018) of SPV_KHR_integer_dot_product. Format 0 is PackedVectorFormat4x8Bit.
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(int a, int b, spirv_literal int format);
int dot_four(uint a, uint b) { return packed_dot(int(a), int(b), 0); }
int dot_sixteen(uvec4 a, uvec4 b) { return dot_four(a.x, b.x) + dot_four(a.y, b.y) + dot_four(a.z, b.z) + dot_four(a.w, b.w); }
float sum_sixteen(uvec4 codes) { return float(dot_sixteen(uvec4(0x01010101), codes)); }

// Sixteen weights: their codes as signed bytes, and (scale, minimum), so that a weight is scale * code + minimum.
struct Sixteen {
  uvec4 codes;
  vec2 scale;
};
Sixteen sixteen_of(uint format, Row row, uint k) {
  Sixteen s;
  s.codes = code_bytes(format, row.side, codes_of(format, row, k));
  s.scale = scale_of(format, row, k);
  return s;
}
bool has_minimum(uint format) { return code_kind(format) == kUnsigned; }
