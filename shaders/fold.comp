#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// The last step of Experts: adds up the results of each row's experts. See FoldParams in params.h.
#define PUSH FoldParams
#include "common.glsl"

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) readonly buffer RouteRows { float route[]; };
layout(set = 0, binding = 2) readonly buffer Residual { float residual[]; };
layout(set = 0, binding = 3) writeonly buffer Out { float y[]; };

void main() {
  if (group() >= p.groups) return;
  const uint row = group() / p.blocks, col = group() % p.blocks * LANES * kFoldPerLane + LANE;
  const uint weights_at = p.route_at + row * p.route_stride + p.chosen;
  float sums[kFoldPerLane];
  [[unroll]] for (uint i = 0; i < kFoldPerLane; ++i) sums[i] = 0;
  for (uint j = 0; j < p.chosen; ++j) {
    const float weight = p.weighed != 0 ? route[weights_at + j] : 1;
    const uint at = p.in_at + (row * p.chosen + j) * p.in_stride;
    [[unroll]] for (uint i = 0; i < kFoldPerLane; ++i) sums[i] += weight * x[at + min(col + i * LANES, p.width - 1)];
  }
  [[unroll]] for (uint i = 0; i < kFoldPerLane; ++i) {
    const uint c = col + i * LANES;
    if (c >= p.width) break;
    float value = p.scale * sums[i];
    if (p.has_residual != 0) value += residual[p.residual_at + row * p.residual_stride + c];
    y[p.out_at + row * p.out_stride + c] = value;
  }
}
