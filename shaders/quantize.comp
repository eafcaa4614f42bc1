#version 450
#extension GL_GOOGLE_include_directive : require
// Rounds float rows to int8 codes with one float scale per 32 columns. See QuantizeParams in params.h. A lane handles 4 columns, and 8
// neighbouring lanes share a scale.
#define PUSH QuantizeParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kQuantizeAligned) const uint ALIGNED = 0;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 0) readonly buffer In4 { vec4 x4[]; };
layout(set = 0, binding = 1) writeonly buffer Out { uint q[]; };

shared float largest[LANES];

void main() {
  if (group() >= p.groups) return;
  const uint item = group() * LANES + LANE, row_items = p.cols / 4;
  const uint row = item / row_items, k = item % row_items * 4;
  const bool inside = row < p.tokens;

  vec4 v = vec4(0);
  if (inside) {
    const uint at = p.in_at + row * p.in_stride + k;
    v = ALIGNED != 0 ? x4[at / 4] : vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
  }
  const vec4 a = abs(v);
  // A number that is not finite counts as infinity. Then the scale of the 32 columns is infinite, and their codes are 0. The product of this
  // scale and a code of 0 is NaN, so every product of the row with weights is NaN, too.
  const bool all_finite = finite(v.x) && finite(v.y) && finite(v.z) && finite(v.w);
  largest[LANE] = all_finite ? max(max(a.x, a.y), max(a.z, a.w)) : uintBitsToFloat(0x7f800000);
  barrier();
  float most = 0;
  for (uint i = 0; i < 8; ++i) most = max(most, largest[LANE / 8 * 8 + i]);

  if (inside) {
    const float inverse = most > 0 ? 127 / most : 0;
    const ivec4 code = finite(most) ? ivec4(clamp(roundEven(v * inverse), -127, 127)) : ivec4(0);
    const uint out_row = p.out_at + row * p.out_stride;
    q[out_row + k / 4] = code.x & 255 | (code.y & 255) << 8 | (code.z & 255) << 16 | code.w << 24;
    if (k % 32 == 0) q[out_row + p.cols / 4 + k / 32] = floatBitsToUint(most / 127);
  }
}
