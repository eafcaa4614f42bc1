#version 450
#extension GL_GOOGLE_include_directive : require
// gemm.comp for activations that quantize.comp made: tiles of int8 codes in shared memory, integer dot products over sixteen columns, then one
// multiplication by the scales. See gemm.comp for how lanes share a tile.
#include "linear_i8.glsl"

const uint HALVES = 2;  // sixteens of a tile's depth: a block of activations
const uint C = 8;       // outputs of a lane
const uint ACROSS = OUTPUTS / C;
const uint DOWN = LANES / ACROSS;
const uint R = TOKENS / DOWN;
const uint STRIDE = HALVES + 1;  // one uvec4 of padding: eight rows of a column lie in different banks

shared uvec4 x_tile[TOKENS * STRIDE];
shared uvec4 w_tile[OUTPUTS * STRIDE];
shared vec2 x_scale[TOKENS * HALVES];   // scale, and scale times the sum of the codes
shared vec2 w_scale[OUTPUTS * HALVES];  // scale, minimum

void main() {
  if (group() >= p.groups) return;
  const uvec2 origin = tile_origin();
  prepare_codes(FORMAT, FORMAT2);
  const uint across = LANE % ACROSS, down = LANE / ACROSS;

  float sums[R * C];
  [[unroll]] for (uint i = 0; i < R * C; ++i) sums[i] = 0;

  for (uint first = 0; first < p.cols; first += HALVES * 16) {
    for (uint i = LANE; i < TOKENS * HALVES; i += LANES) {
      const uint row = i / HALVES, half_of = i % HALVES;
      const uint source = activation_row(min(origin.x + row, p.tokens - 1));
      const uvec4 codes = activation_codes(source, first + half_of * 16);
      const float scale = activation_scale(source, first);
      x_tile[row * STRIDE + half_of] = codes;
      x_scale[row * HALVES + half_of] = vec2(scale, scale * sum_sixteen(codes));
    }
    for (uint i = LANE; i < OUTPUTS * HALVES; i += LANES) {
      const uint row = i % OUTPUTS, half_of = i / OUTPUTS, k = first + half_of * 16;
      Sixteen s;
      if (is_second(row)) {
        s = sixteen_of(FORMAT2, tile_row(origin.y, row), k);
      } else {
        s = sixteen_of(FORMAT, tile_row(origin.y, row), k);
      }
      w_tile[row * STRIDE + half_of] = s.codes;
      w_scale[row * HALVES + half_of] = s.scale;
    }
    barrier();
    for (uint h = 0; h < HALVES; ++h) {
      uvec4 w[C];
      vec2 scale[C];
      [[unroll]] for (uint c = 0; c < C; ++c) {
        w[c] = w_tile[(across + c * ACROSS) * STRIDE + h];
        scale[c] = w_scale[(across + c * ACROSS) * HALVES + h];
      }
      [[unroll]] for (uint r = 0; r < R; ++r) {
        const uvec4 x = x_tile[(down + r * DOWN) * STRIDE + h];
        const vec2 xs = x_scale[(down + r * DOWN) * HALVES + h];
        [[unroll]] for (uint c = 0; c < C; ++c) {
          sums[r * C + c] += xs.x * (scale[c].x * float(dot_sixteen(w[c], x)));
          if (has_minimum(FORMAT) || has_minimum(FORMAT2)) sums[r * C + c] += xs.y * scale[c].y;
        }
      }
    }
    barrier();
  }

  [[unroll]] for (uint r = 0; r < R; ++r) {
    const uint token = origin.x + down + r * DOWN;
    [[unroll]] for (uint c = 0; c < WIDTH / ACROSS; ++c) {
      const uint column = origin.y + across + c * ACROSS;
      if (token < p.tokens && column < p.outputs) store(token, column, sums[r * C + c], GATED != 0 ? sums[r * C + c + C / 2] : 0);
    }
  }
}
