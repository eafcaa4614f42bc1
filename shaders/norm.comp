#version 450
#extension GL_GOOGLE_include_directive : require
// Root mean square norm (Zhang and Sennrich 2019) and layer norm (Ba, Kiros and Hinton 2016); NormParams in params.h.
// Three passes over the row instead of one: the variance is that around the mean, and the row comes from the cache after the first.
#define PUSH NormParams
#include "common.glsl"

layout(constant_id = kNormKind) const uint KIND = 0;
layout(constant_id = kNormBias) const uint HAS_BIAS = 0;
layout(constant_id = kNormAdd) const uint HAS_ADD = 0;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Add { float add[]; };
layout(set = 0, binding = 3) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };

void main() {
  if (group() >= p.groups) return;
  const uint row = group() / p.heads, col = group() % p.heads * p.width;
  const uint in_at = p.in_at + row * p.in_stride + col;
  const uint out_at = p.out_at + row * p.out_stride + col;
  const uint add_at = p.add_at + row * p.add_stride + col;

  float mean = 0;
  if (KIND == 1) {
    float sum = 0;
    for (uint i = LANE; i < p.width; i += LANES) sum += x[in_at + i];
    mean = workgroup_add(sum) / float(p.width);
  }
  float squares = 0, rest = 0;
  for (uint i = LANE; i < p.width; i += LANES) {
    const float d = x[in_at + i] - mean;
    squares += d * d;
    rest += d;
  }
  squares = workgroup_add(squares) / float(p.width);
  // The mean of the differences is what rounding took from the mean: 2e-7 of it, which counts where the variance is far smaller.
  if (KIND == 1) {
    rest = workgroup_add(rest) / float(p.width);
    squares = max(squares - rest * rest, 0);
  } else {
    rest = 0;
  }
  const float factor = 1 / sqrt(squares + p.eps);
  for (uint i = LANE; i < p.width; i += LANES) {
    float value = (x[in_at + i] - mean - rest) * factor * weight[p.weight_at + i];
    if (HAS_BIAS != 0) value += bias[p.bias_at + i];
    if (HAS_ADD != 0) value += add[add_at + i];
    y[out_at + i] = value;
  }
}
