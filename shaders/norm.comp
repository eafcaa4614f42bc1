#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Computes the root mean square norm (Zhang and Sennrich 2019) or the layer norm (Ba, Kiros and Hinton 2016). See NormParams in params.h.
// There are three passes over a row. The first computes the mean (layer norm only), the second computes the mean square of x - mean, and
// the third writes the output. When decoding, there is only one group with one row, so most of the time is the latency of loads. A lane
// therefore has BATCH loads in flight at once.
#define PUSH NormParams
#include "common.glsl"

layout(constant_id = kNormKind) const uint KIND = kNormRms;
layout(constant_id = kNormWeight) const uint HAS_WEIGHT = 0;
layout(constant_id = kNormBias) const uint HAS_BIAS = 0;
layout(constant_id = kNormAdd) const uint HAS_ADD = 0;
layout(constant_id = kNormBatch) const uint BATCH = 1;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Add { float add[]; };
layout(set = 0, binding = 3) readonly buffer Vectors { float vectors[]; };

void main() {
  if (group() >= p.groups) return;
  const uint row = group() / p.heads, head = group() % p.heads, col = head * p.width;
  const uint values_at = head * p.head_values;
  const uint in_at = p.in_at + row * p.in_stride + col;
  const uint out_at = p.out_at + row * p.out_stride + col;
  const uint add_at = p.add_at + row * p.add_stride + col;

  float mean = 0;
  if (KIND == kNormLayer) {
    float sum = 0;
    for (uint i = LANE; i < p.width; i += BATCH * LANES) {
      float v[BATCH];
      [[unroll]] for (uint j = 0; j < BATCH; ++j) v[j] = i + j * LANES < p.width ? x[in_at + i + j * LANES] : 0;
      [[unroll]] for (uint j = 0; j < BATCH; ++j) sum += v[j];
    }
    mean = workgroup_add(sum) / float(p.width);
  }

  float squares = 0, rest = 0;
  for (uint i = LANE; i < p.width; i += BATCH * LANES) {
    float v[BATCH];
    [[unroll]] for (uint j = 0; j < BATCH; ++j) v[j] = i + j * LANES < p.width ? x[in_at + i + j * LANES] - mean : 0;
    [[unroll]] for (uint j = 0; j < BATCH; ++j) {
      squares += v[j] * v[j];
      rest += v[j];
    }
  }
  squares = workgroup_add(squares) / float(p.width);
  // `rest` becomes the mean of x - mean, which is the rounding error of `mean` (about 2e-7 of the mean). The error is subtracted here and
  // below, because it matters if the variance is far smaller than the mean.
  if (KIND == kNormLayer) {
    rest = workgroup_add(rest) / float(p.width);
    squares = max(squares - rest * rest, 0);
  } else {
    rest = 0;
  }
  const float factor = 1 / sqrt(squares + p.eps);

  for (uint i = LANE; i < p.width; i += BATCH * LANES) {
    float v[BATCH];
    [[unroll]] for (uint j = 0; j < BATCH; ++j) {
      const uint c = i + j * LANES;
      if (c >= p.width) continue;
      v[j] = (x[in_at + c] - mean - rest) * factor;
      if (HAS_WEIGHT != 0) v[j] *= vectors[p.weight_at + values_at + c];
      if (HAS_BIAS != 0) v[j] += vectors[p.bias_at + values_at + c];
      if (HAS_ADD != 0) v[j] += add[add_at + c];
    }
    // The stores have a loop of their own, so that no load waits for a store that might write to the same address.
    [[unroll]] for (uint j = 0; j < BATCH; ++j) {
      if (i + j * LANES < p.width) y[out_at + i + j * LANES] = v[j];
    }
  }
}
