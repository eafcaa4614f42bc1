#version 450
#extension GL_GOOGLE_include_directive : require
// Does the same as matvec.comp for activations that quantize.comp wrote, with integer dot products.
#include "linear_i8.glsl"
#include "matvec_sums.glsl"

void main() {
  if (!find_tile()) return;
  prepare_codes(FORMAT, FORMAT2);
  Row rows[OUTPUTS];
  [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) rows[i] = tile_row(i);
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
      const uint row = activation_row(t);
      const uvec4 x = activation_codes(row, k);
      const float x_scale = activation_scale(row, k), total = sum_sixteen(x);
      [[unroll]] for (uint i = 0; i < OUTPUTS; ++i) {
        float product = w[i].scale.x * float(dot_sixteen(w[i].codes, x));
        if (has_minimum(is_second(i) ? FORMAT2 : FORMAT)) product += w[i].scale.y * total;
        sums[t * OUTPUTS + i] += x_scale * product;
      }
    }
  }
  finish();
}
