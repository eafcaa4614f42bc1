#version 450
#extension GL_GOOGLE_include_directive : require
// Linear and GatedLinear for few token rows. All lanes walk along the columns, eight at a time each, past OUTPUTS rows of weights at once:
// loads of neighbouring lanes are neighbours, and each activation is read once for OUTPUTS weights.
#include "linear.glsl"

layout(set = 0, binding = 1) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) readonly buffer In4 { vec4 x4[]; };

const uint SUMS = TOKENS * OUTPUTS;
float sums[SUMS];
shared float partial[SUMS * LANES];  // by subgroup; LANES of them at most

// Weights as read: floats, or codes that `scale` and `minimum` turn into weights once they are multiplied and summed.
struct Eight {
  vec4 a, b;
  vec2 scale;
};
Eight eight_of(uint format, Row row, uint k) {
  Eight e;
  if (is_quantised(format)) {
    const uvec2 codes = codes_of(format, row, k);
    e.a = code_floats(format, row.side, codes.x);
    e.b = code_floats(format, row.side, codes.y);
    e.scale = scale_of(format, row, k);
  } else {
    floats_of(format, row, k, e.a, e.b);
    e.scale = vec2(1, 0);
  }
  return e;
}

Row rows[OUTPUTS];
void add_products(uint first_token, uint k, bool whole) {
  Eight e[OUTPUTS];
  [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
    if (is_second(i)) {
      e[i] = eight_of(FORMAT2, rows[i], k);
    } else {
      e[i] = eight_of(FORMAT, rows[i], k);
    }
  }
  [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
    const uint at = p.in_at + min(first_token + t, p.tokens - 1) * p.in_stride + k;
    vec4 a, b;
    if (ALIGNED != 0 && whole) {
      a = x4[at / 4];
      b = x4[at / 4 + 1];
    } else {  // what lies behind the last column may be anything
      const uint n = p.cols - k;
      a = vec4(x[at], n > 1 ? x[at + 1] : 0, n > 2 ? x[at + 2] : 0, n > 3 ? x[at + 3] : 0);
      b = vec4(n > 4 ? x[at + 4] : 0, n > 5 ? x[at + 5] : 0, n > 6 ? x[at + 6] : 0, n > 7 ? x[at + 7] : 0);
    }
    const float total = (a.x + a.y + a.z + a.w) + (b.x + b.y + b.z + b.w);
    [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
      const uint s = t * OUTPUTS + i;
      sums[s] += e[i].scale.x * (dot(e[i].a, a) + dot(e[i].b, b)) + e[i].scale.y * total;
    }
  }
}

void main() {
  if (group() >= p.groups) return;
  const uvec2 origin = tile_origin();
  prepare_codes(FORMAT, FORMAT2);
  [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) rows[i] = tile_row(origin.y, i);
  [[unroll]] for (uint s = 0; s < SUMS; ++s) sums[s] = 0;

  const uint whole = p.cols & ~7;
  for (uint k = LANE * 8; k < whole; k += LANES * 8) add_products(origin.x, k, true);
  if (!is_quantised(FORMAT) && whole < p.cols && LANE == LANES - 1) add_products(origin.x, whole, false);

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
