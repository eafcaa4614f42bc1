#version 450
#extension GL_GOOGLE_include_directive : require
// Log-probability of one token per row. See LogProbParams in params.h. The first pass finds the maximum, the second one sums exponentials.
#define PUSH LogProbParams
#include "common.glsl"
#include "finite.glsl"

layout(set = 0, binding = 0) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Meta { uint meta[]; };

void main() {
  if (group() >= p.groups) return;
  const uint at = p.in_at + group() * p.in_stride, id = meta[p.ids_at + group()];
  float largest = LOWEST;
  for (uint i = LANE; i < p.width; i += LANES) largest = max(largest, logits[at + i]);
  largest = workgroup_max(largest);

  // A maximum or an exponential could lose a NaN or an infinity, so either of them makes the sum NaN.
  float sum = 0;
  for (uint i = LANE; i < p.width; i += LANES) {
    const float x = logits[at + i];
    sum += finite(x) ? exp(x - largest) : NOT_A_NUMBER;
  }
  sum = workgroup_add(sum);
  if (LANE == 0) y[p.out_at + group() * p.out_stride] = id < p.width ? logits[at + id] - largest - log(sum) : NOT_A_NUMBER;
}
