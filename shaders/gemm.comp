#version 450
#extension GL_GOOGLE_include_directive : require
// Linear and GatedLinear for many token rows: a group multiplies TOKENS rows of activations by OUTPUTS rows of weights, DEPTH columns at a time
// from shared memory; a lane owns R tokens x 8 outputs in registers. Lanes interleave (lane i has outputs i, i + ACROSS, ...), so that
// neighbours store neighbouring numbers, and so that a gate and its `up` meet in one lane.
#include "linear_float.glsl"

const uint DEPTH = 16;              // the weights that one lane reads at once; padded with zeros, as every row of weights
const uint C = 8;                   // outputs of a lane
const uint ACROSS = OUTPUTS / C;    // lanes along the outputs
const uint DOWN = LANES / ACROSS;   // lanes along the tokens
const uint R = TOKENS / DOWN;       // tokens of a lane
const uint STRIDE = DEPTH / 4 + 1;  // one vec4 of padding: eight rows of a column lie in different banks

shared vec4 x_tile[TOKENS * STRIDE];
shared vec4 w_tile[OUTPUTS * STRIDE];

void main() {
  if (group() >= p.groups) return;
  const uvec2 origin = tile_origin();
  prepare_codes(FORMAT, FORMAT2);
  const uint across = LANE % ACROSS, down = LANE / ACROSS;

  float sums[R * C];
  [[unroll]] for (uint i = 0; i < R * C; ++i) sums[i] = 0;

  for (uint first = 0; first < p.cols; first += DEPTH) {
    for (uint i = LANE; i < TOKENS * DEPTH / 4; i += LANES) {
      const uint row = i / (DEPTH / 4), k = i % (DEPTH / 4);
      x_tile[row * STRIDE + k] = activations(min(origin.x + row, p.tokens - 1), first + k * 4);
    }
    for (uint i = LANE; i < OUTPUTS; i += LANES) {
      vec4 w[4];
      if (is_second(i)) {
        weights_of(FORMAT2, tile_row(origin.y, i), first, w);
      } else {
        weights_of(FORMAT, tile_row(origin.y, i), first, w);
      }
      [[unroll]] for (uint k = 0; k < 4; ++k) w_tile[i * STRIDE + k] = w[k];
    }
    barrier();
    for (uint k = 0; k < DEPTH / 4; ++k) {
      vec4 w[C];
      [[unroll]] for (uint c = 0; c < C; ++c) w[c] = w_tile[(across + c * ACROSS) * STRIDE + k];
      [[unroll]] for (uint r = 0; r < R; ++r) {
        const vec4 v = x_tile[(down + r * DOWN) * STRIDE + k];
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

  [[unroll]] for (uint r = 0; r < R; ++r) {
    const uint token = origin.x + down + r * DOWN;
    [[unroll]] for (uint c = 0; c < WIDTH / ACROSS; ++c) {
      const uint column = origin.y + across + c * ACROSS;
      if (token < p.tokens && column < p.outputs) store(token, column, sums[r * C + c], GATED != 0 ? sums[r * C + c + C / 2] : 0);
    }
  }
}
