#version 450
#extension GL_GOOGLE_include_directive : require
// Multiplies many token rows by weights. A group multiplies TOKENS rows of activations by OUTPUTS rows of weights. It loads DEPTH
// columns of these rows at a time into shared memory.
#include "linear_float.glsl"

// Number of columns per step. It is 16 because weights_of() loads 16 weights. Rows of weights are padded with zeros to a multiple of 16.
const uint DEPTH = 16;
const uint SIXTEENS = DEPTH / 4;  // number of uvec4 in a row of the tile; each holds four floats
#include "gemm_tile.glsl"

void main() {
  if (!find_tile()) return;
  prepare_codes(FORMAT, FORMAT2);

  [[unroll]] for (uint i = 0; i < R * C; ++i) sums[i] = 0;

  for (uint first = 0; first < p.cols; first += DEPTH) {
    for (uint i = LANE; i < TOKENS * DEPTH / 4; i += LANES) {
      const uint row = i / (DEPTH / 4), k = i % (DEPTH / 4);
      tile[x_slot(row, k)] = floatBitsToUint(activations(activation_row(row), first + k * 4));
    }
    for (uint i = LANE; i < OUTPUTS; i += LANES) {
      vec4 w[4];
      if (is_second(i)) {
        weights_of(FORMAT2, tile_row(i), first, w);
      } else {
        weights_of(FORMAT, tile_row(i), first, w);
      }
      [[unroll]] for (uint k = 0; k < 4; ++k) tile[w_slot(i, k)] = floatBitsToUint(w[k]);
    }
    barrier();
    for (uint k = 0; k < DEPTH / 4; ++k) {
      vec4 w[C];
      [[unroll]] for (uint c = 0; c < C; ++c) w[c] = uintBitsToFloat(tile[w_slot(across() + c * ACROSS, k)]);
      [[unroll]] for (uint r = 0; r < R; ++r) {
        const vec4 v = uintBitsToFloat(tile[x_slot(down() + r * DOWN, k)]);
        [[unroll]] for (uint c = 0; c < C; ++c) {
          sums[r * C + c] += v.x * w[c].x;
          sums[r * C + c] += v.y * w[c].y;
          sums[r * C + c] += v.z * w[c].z;
          sums[r * C + c] += v.w * w[c].w;
        }
      }
    }
    barrier();
  }
  finish();
}
