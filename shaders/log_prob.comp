#version 450
#extension GL_GOOGLE_include_directive : require
// Computes the log-probability of one token per row. See LogProbParams in params.h. The first pass over the logits finds the maximum, and
// the second pass sums the exponentials.
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

  // max() and exp() may turn a NaN or an infinity into a finite number. So a logit that is not finite makes the sum NaN.
  float sum = 0;
  for (uint i = LANE; i < p.width; i += LANES) {
    const float x = logits[at + i];
    sum += finite(x) ? exp(x - largest) : NOT_A_NUMBER;
  }
  sum = workgroup_add(sum);
  if (LANE == 0) y[p.out_at + group() * p.out_stride] = id < p.width ? logits[at + id] - largest - log(sum) : NOT_A_NUMBER;
}
