#version 450
#extension GL_GOOGLE_include_directive : require
// Computes Embed: looks up rows of a table by their indices and writes them as floats. See GatherParams in params.h.
#define PUSH GatherParams
#include "common.glsl"
#include "weights.glsl"

layout(constant_id = kGatherFormat) const uint FORMAT = 0;
layout(constant_id = kGatherAdd) const uint ADD = 0;

layout(set = 0, binding = 1) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 2) buffer Out { float y[]; };

void main() {
  if (group() >= p.groups) return;
  const uint index = meta[p.index_at + group()];
  if (index - p.chunk_first >= p.chunk_rows) return;
  prepare_codes(FORMAT, FORMAT);
  const Row row = row_at(FORMAT, 0, p.weights_at, index - p.chunk_first, p.cols);
  const uint out_row = p.out_at + group() * p.out_stride;
  for (uint k = LANE * 16; k < p.cols; k += LANES * 16) {
    vec4 w[4];
    weights_of(FORMAT, row, k, w);
    [[unroll]] for (uint i = 0; i < 16; ++i) {
      if (k + i < p.cols) {
        const uint at = out_row + k + i;
        const float value = p.scale * w[i / 4][i % 4];
        y[at] = ADD != 0 ? y[at] + value : value;
      }
    }
  }
}
