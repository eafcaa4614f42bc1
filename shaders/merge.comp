#version 450
#extension GL_GOOGLE_include_directive : require
// Folds the parts of one query that attend.comp left; MergeParams in params.h.
#define PUSH MergeParams
#include "common.glsl"
#include "finite.glsl"

layout(set = 0, binding = 0) readonly buffer Partials { float partials[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };

void main() {
  if (group() >= p.groups) return;
  const uint first = group() * p.parts, dim = (p.head_dim + 7) / 8 * 8;
  const uint out_at = p.out_at + group() / p.heads * p.out_stride + group() % p.heads * p.head_dim;
  float largest = LOWEST;
  for (uint i = 0; i < p.parts; ++i) largest = max(largest, partials[p.states_at + (first + i) * 2]);
  for (uint d = LANE; d < p.head_dim; d += LANES) {
    float sum = 0, mixed = 0;
    for (uint i = 0; i < p.parts; ++i) {
      const uint state = p.states_at + (first + i) * 2;
      if (partials[state + 1] == 0) continue;  // saw no key: the accumulator is void
      const float weight = exp(partials[state] - largest);
      sum += weight * partials[state + 1];
      mixed += weight * partials[(first + i) * dim + d];
    }
    y[out_at + d] = mixed / sum;
  }
}
