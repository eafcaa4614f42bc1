#version 450
#extension GL_GOOGLE_include_directive : require
// matvec.comp for activations that quantize.comp made: integer dot products, sixteen columns a step, since no format has smaller sub-blocks.
#include "linear.glsl"
#include "dot.glsl"

layout(set = 0, binding = 1) readonly buffer In4 { uvec4 x4[]; };
layout(set = 0, binding = 1) readonly buffer InScales { float x_scales[]; };

const uint SUMS = TOKENS * OUTPUTS;
shared float partial[SUMS * LANES];  // by subgroup; LANES of them at most

struct Sixteen {
  uvec4 codes;  // signed bytes
  vec2 scale;
};
Sixteen sixteen_of(uint format, Row row, uint k) {
  const uvec2 a = codes_of(format, row, k), b = codes_of(format, row, k + 8);
  Sixteen s;
  s.codes = uvec4(code_bytes(format, row.side, a.x), code_bytes(format, row.side, a.y), code_bytes(format, row.side, b.x),
                  code_bytes(format, row.side, b.y));
  s.scale = scale_of(format, row, k);
  return s;
}
int dot_sixteen(uvec4 a, uvec4 b) { return dot_bytes(a.x, b.x) + dot_bytes(a.y, b.y) + dot_bytes(a.z, b.z) + dot_bytes(a.w, b.w); }

void main() {
  if (group() >= p.groups) return;
  const uvec2 origin = tile_origin();
  prepare_codes(FORMAT, FORMAT2);
  Row rows[OUTPUTS];
  [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) rows[i] = tile_row(origin.y, i);
  float sums[SUMS];
  [[unroll]] for (uint s = 0; s < SUMS; ++s) sums[s] = 0;

  for (uint k = LANE * 16; k < p.cols; k += LANES * 16) {
    Sixteen w[OUTPUTS];
    [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
      if (is_second(i)) {
        w[i] = sixteen_of(FORMAT2, rows[i], k);
      } else {
        w[i] = sixteen_of(FORMAT, rows[i], k);
      }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
      const uint row = p.in_at + min(origin.x + t, p.tokens - 1) * p.in_stride;
      const uvec4 x = x4[(row + k / 4) / 4];
      const float x_scale = x_scales[row + p.cols / 4 + k / 32], total = float(dot_sixteen(uvec4(0x01010101), x));
      [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
        sums[t * OUTPUTS + i] += x_scale * (w[i].scale.x * float(dot_sixteen(w[i].codes, x)) + w[i].scale.y * total);
      }
    }
  }

  [[unroll]] for (uint s = 0; s < SUMS; ++s) sums[s] = subgroupAdd(sums[s]);
  if (subgroupElect()) {
    [[unroll]] for (uint s = 0; s < SUMS; ++s) partial[gl_SubgroupID * SUMS + s] = sums[s];
  }
  barrier();
  const uint t = LANE / WIDTH, i = LANE % WIDTH;
  if (t >= TOKENS || origin.x + t >= p.tokens || origin.y + i >= p.outputs) return;
  float product = 0, product2 = 0;
  for (uint g = 0; g < gl_NumSubgroups; ++g) {
    product += partial[g * SUMS + t * OUTPUTS + i];
    if (GATED != 0) product2 += partial[g * SUMS + t * OUTPUTS + WIDTH + i];
  }
  store(origin.x + t, origin.y + i, product, product2);
}
