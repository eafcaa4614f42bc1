#version 450
#extension GL_GOOGLE_include_directive : require
// Computes the factors of Scan for each row and head. See ScanGatesParams in params.h. A lane handles one head of one row.
#define PUSH ScanGatesParams
#include "common.glsl"
#include "activations.glsl"

layout(constant_id = kScanGatesRule) const uint RULE = kScanDelta;

layout(set = 0, binding = 0) readonly buffer Step { float step_of[]; };
layout(set = 0, binding = 1) readonly buffer Beta { float beta[]; };
layout(set = 0, binding = 2) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 3) writeonly buffer Work { float work[]; };

void main() {
  if (group() >= p.groups) return;
  const uint i = group() * LANES + LANE, row = i / p.heads, head = i % p.heads;
  if (row >= p.rows) return;
  float dt = step_of[p.step_at + row * p.step_stride + head];
  if (p.has_step_bias != 0) dt += vectors[p.step_bias_at + head];
  dt = softplus_of(dt);
  if (dt < p.floor) dt = p.floor;  // a comparison is used and not max(), so that a NaN stays a NaN
  work[i * kGateWords] = exp(vectors[p.rate_at + head] * dt);
  work[i * kGateWords + 1] = RULE == kScanDelta ? p.strength * activate_sigmoid(beta[p.beta_at + row * p.beta_stride + head], vec2(0)) : dt;
  work[i * kGateWords + 2] = p.has_skip != 0 ? vectors[p.skip_at + head] : 0;
}
