#version 450
#extension GL_GOOGLE_include_directive : require
// gemm.comp for activations that quantize.comp made: tiles of int8 codes in shared memory, integer dot products over sixteen columns, then one
// multiplication by the scales. See gemm.comp for how lanes share a tile.
#include "linear.glsl"
#include "dot.glsl"

layout(set = 0, binding = 1) readonly buffer In4 { uvec4 x4[]; };
layout(set = 0, binding = 1) readonly buffer InScales { float x_scales[]; };

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

bool has_minimum(uint format) { return code_kind(format) == kUnsigned; }
int dot_sixteen(uvec4 a, uvec4 b) { return dot_bytes(a.x, b.x) + dot_bytes(a.y, b.y) + dot_bytes(a.z, b.z) + dot_bytes(a.w, b.w); }

void load_weights(uint format, Row row, uint k, uint slot, uint scale_slot) {
  const uvec2 a = codes_of(format, row, k), b = codes_of(format, row, k + 8);
  w_tile[slot] = uvec4(code_bytes(format, row.side, a.x), code_bytes(format, row.side, a.y), code_bytes(format, row.side, b.x),
                       code_bytes(format, row.side, b.y));
  w_scale[scale_slot] = scale_of(format, row, k);
}

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
      const uint at = p.in_at + min(origin.x + row, p.tokens - 1) * p.in_stride;
      const uvec4 codes = x4[(at + first / 4) / 4 + half_of];
      const float scale = x_scales[at + p.cols / 4 + first / 32];
      x_tile[row * STRIDE + half_of] = codes;
      x_scale[row * HALVES + half_of] = vec2(scale, scale * float(dot_sixteen(uvec4(0x01010101), codes)));
    }
    for (uint i = LANE; i < OUTPUTS * HALVES; i += LANES) {
      const uint row = i % OUTPUTS, half_of = i / OUTPUTS, k = first + half_of * 16;
      if (is_second(row)) {
        load_weights(FORMAT2, tile_row(origin.y, row), k, row * STRIDE + half_of, row * HALVES + half_of);
      } else {
        load_weights(FORMAT, tile_row(origin.y, row), k, row * STRIDE + half_of, row * HALVES + half_of);
      }
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
