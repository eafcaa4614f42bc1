#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Copies the selected rows of `in` to neighbouring rows of `out`. See SelectParams in params.h.
#define PUSH SelectParams
#include "common.glsl"

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Meta { uint meta[]; };

void main() {
  if (group() >= p.groups) return;
  const uint row = group() / p.blocks, col = group() % p.blocks * LANES * kSelectPerLane + LANE;
  const uint from = meta[p.rows_at + row] - p.chunk_first;
  if (from >= p.chunk_rows) return;
  const uint in_at = p.in_at + from * p.in_stride, out_at = p.out_at + row * p.out_stride;
  float v[kSelectPerLane];
  [[unroll]] for (uint i = 0; i < kSelectPerLane; ++i) v[i] = x[in_at + min(col + i * LANES, p.width - 1)];
  [[unroll]] for (uint i = 0; i < kSelectPerLane; ++i) {
    if (col + i * LANES < p.width) y[out_at + col + i * LANES] = v[i];
  }
}
