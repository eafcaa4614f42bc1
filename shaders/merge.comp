#version 450
#extension GL_GOOGLE_include_directive : require
// Combines the parts that attend.comp wrote for each query into one result. See MergeParams in params.h.
#define PUSH MergeParams
#include "common.glsl"
#include "finite.glsl"

layout(set = 0, binding = 0) readonly buffer Partials { float partials[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };

shared float weight[LANES];  // the weights of up to LANES parts

void main() {
  if (group() >= p.groups) return;
  const uint first = group() * p.parts, dim = (p.value_dim + 7) / 8 * 8, state = p.states_at + 2 * first;
  const uint out_at = p.out_at + group() / p.heads * p.out_stride + group() % p.heads * p.value_dim;

  float largest = LOWEST;
  for (uint i = LANE; i < p.parts; i += LANES) largest = max(largest, partials[state + 2 * i]);
  largest = workgroup_max(largest);
  float sum = 0;
  for (uint i = LANE; i < p.parts; i += LANES) sum += exp(partials[state + 2 * i] - largest) * partials[state + 2 * i + 1];
  sum = workgroup_add(sum);

  for (uint d0 = 0; d0 < p.value_dim; d0 += LANES) {
    const uint d = min(d0 + LANE, p.value_dim - 1);
    float mixed = 0;
    for (uint i0 = 0; i0 < p.parts; i0 += LANES) {
      barrier();
      if (i0 + LANE < p.parts) weight[LANE] = exp(partials[state + 2 * (i0 + LANE)] - largest);
      barrier();
      const uint count = min(p.parts - i0, LANES);
      uint at = (first + i0) * dim + d, i = 0;
      for (; i + 4 <= count; i += 4, at += 4 * dim) {  // four loads are in flight at once
        const float a = partials[at], b = partials[at + dim], c = partials[at + 2 * dim], e = partials[at + 3 * dim];
        mixed += weight[i] * a + weight[i + 1] * b + weight[i + 2] * c + weight[i + 3] * e;
      }
      for (; i < count; ++i, at += dim) mixed += weight[i] * partials[at];
    }
    if (d0 + LANE < p.value_dim) y[out_at + d] = mixed / sum;
  }
}
