#version 450
#extension GL_GOOGLE_include_directive : require
// Multiplies few token rows by weights. The columns are divided among the lanes. A lane handles sixteen columns of OUTPUTS rows of
// weights at a time. Neighbouring lanes load neighbouring weights, and each loaded activation is multiplied by weights of all OUTPUTS rows.
#include "linear_float.glsl"
#include "matvec_sums.glsl"

// Sixteen weights of a row. In a quantised format, `w` holds the codes as floats, and `scale` holds (scale, minimum), which main() applies
// to the sum of sixteen products. In other formats, `w` holds the weights themselves.
struct Sixteen {
  vec4 w[4];
  vec2 scale;
};
Sixteen sixteen_of(uint format, Row row, uint k) {
  Sixteen s;
  if (is_quantized(format)) {
    const uvec4 codes = codes_of(format, row, k);
    [[unroll]] for (uint i = 0; i < 4; ++i) s.w[i] = code_floats(format, row.side, codes[i]);
    s.scale = scale_of(format, row, k);
  } else {
    floats_of(format, row, k, s.w);
    s.scale = vec2(1, 0);
  }
  return s;
}

void main() {
  if (!find_tile()) return;
  prepare_codes(FORMAT, FORMAT2);
  Row rows[OUTPUTS];
  [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) rows[i] = tile_row(i);
  [[unroll]] for (uint s = 0; s < SUMS; ++s) sums[s] = 0;

  const uint whole = p.cols & ~15;
  for (uint k = LANE * 16; k < whole; k += LANES * 16) {
    Sixteen s[OUTPUTS];
    [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
      if (is_second(i)) {
        s[i] = sixteen_of(FORMAT2, rows[i], k);
      } else {
        s[i] = sixteen_of(FORMAT, rows[i], k);
      }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; ++t) {
      const uint row = activation_row(t);
      vec4 v[4];
      [[unroll]] for (uint j = 0; j < 4; ++j) v[j] = four_activations(row, k + 4 * j);
      const float total = dot(v[0] + v[1] + (v[2] + v[3]), vec4(1));
      [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
        float product = 0;
        [[unroll]] for (uint j = 0; j < 4; ++j) product += dot(s[i].w[j], v[j]);
        if (is_quantized(is_second(i) ? FORMAT2 : FORMAT)) product = s[i].scale.x * product + s[i].scale.y * total;
        sums[t * OUTPUTS + i] += product;
      }
    }
  }
  // In formats without blocks, up to 15 columns are left at the end of a row. Each of the first lanes handles one of these columns.
  if (!is_quantized(FORMAT) && whole + LANE < p.cols) {
    const uint k = whole + LANE;
    [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
      const float w = is_second(i) ? float_of(FORMAT2, rows[i], k) : float_of(FORMAT, rows[i], k);
      [[unroll]] for (uint t = 0; t < TOKENS; ++t) sums[t * OUTPUTS + i] += w * x[activation_row(t) + k];
    }
  }
  finish();
}
