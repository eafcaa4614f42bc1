#version 450
#extension GL_GOOGLE_include_directive : require
// Does the same as gemm.comp for activations that quantize.comp wrote. The tile in shared memory holds int8 codes. The product of sixteen
// columns is an integer dot product, which is then multiplied by the scales.
#include "linear_i8.glsl"

const uint HALVES = 2;  // number of halves, of 16 columns each, in a step of 32 columns, which share a scale of the activations
const uint SIXTEENS = HALVES;
#include "gemm_tile.glsl"

shared vec2 x_scale[TOKENS * HALVES];   // for every 16 activations: (scale, scale * sum of the codes)
shared vec2 w_scale[OUTPUTS * HALVES];  // for every 16 weights: (scale, minimum)

void main() {
  if (!find_tile()) return;
  prepare_codes(FORMAT, FORMAT2);

  [[unroll]] for (uint i = 0; i < R * C; ++i) sums[i] = 0;

  for (uint first = 0; first < p.cols; first += HALVES * 16) {
    for (uint i = LANE; i < TOKENS * HALVES; i += LANES) {
      const uint row = i / HALVES, half_of = i % HALVES;
      const uint source = activation_row(row);
      const uvec4 codes = activation_codes(source, first + half_of * 16);
      const float scale = activation_scale(source, first);
      tile[x_slot(row, half_of)] = codes;
      x_scale[row * HALVES + half_of] = vec2(scale, scale * sum_sixteen(codes));
    }
    for (uint i = LANE; i < OUTPUTS * HALVES; i += LANES) {
      const uint row = i % OUTPUTS, half_of = i / OUTPUTS, k = first + half_of * 16;
      Sixteen s;
      if (is_second(row)) {
        s = sixteen_of(FORMAT2, tile_row(row), k);
      } else {
        s = sixteen_of(FORMAT, tile_row(row), k);
      }
      tile[w_slot(row, half_of)] = s.codes;
      w_scale[row * HALVES + half_of] = s.scale;
    }
    barrier();
    for (uint h = 0; h < HALVES; ++h) {
      uvec4 w[C];
      vec2 scale[C];
      [[unroll]] for (uint c = 0; c < C; ++c) {
        w[c] = tile[w_slot(across() + c * ACROSS, h)];
        scale[c] = w_scale[(across() + c * ACROSS) * HALVES + h];
      }
      [[unroll]] for (uint r = 0; r < R; ++r) {
        const uvec4 x = tile[x_slot(down() + r * DOWN, h)];
        const vec2 xs = x_scale[(down() + r * DOWN) * HALVES + h];
        [[unroll]] for (uint c = 0; c < C; ++c) {
          sums[r * C + c] += xs.x * (scale[c].x * float(dot_sixteen(w[c], x)));
          if (has_minimum(FORMAT) || has_minimum(FORMAT2)) sums[r * C + c] += xs.y * scale[c].y;
        }
      }
    }
    barrier();
  }
  finish();
}
