#version 450
#extension GL_GOOGLE_include_directive : require
// Computes a convolution over the rows of a segment, separately for each column. See ConvParams in params.h. A lane handles one column of a
// span (a run of the segment's rows). It computes row after row and keeps TAPS numbers of its column in registers.
#define PUSH ConvParams
#include "common.glsl"
#include "activations.glsl"

layout(constant_id = kConvTaps) const uint TAPS = 4;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 3) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 4) readonly buffer From { float from[]; };
layout(set = 0, binding = 5) writeonly buffer To { float to[]; };
#include "spans.glsl"

// Returns column `col` of row `row`, which is counted from the span's first row. Rows before the segment come from the state, or are 0 if
// there is no state. Rows after the segment are 0.
float value(Span span, int row, uint col) {
  const int own = int(span.before) + row;  // counted from the segment's first row
  if (own >= 0) return row < int(span.rows + span.after) ? x[p.in_at + uint(int(span.first + p.halo) + row) * p.in_stride + col] : 0;
  if (span.source == kNoState) return 0;
  return from[(span.source - p.from_first) * p.state_words + uint(own + int(TAPS) - 1) * p.width + col];
}

void main() {
  if (group() >= p.groups) return;
  const Span span = span_of(group() / p.blocks);
  const uint col = group() % p.blocks * LANES + LANE;
  if (col >= p.width || !runs_here(span)) return;

  // While row r of the span is computed, rows[j] has row r - (TAPS - 1) + lead + j.
  float taps[TAPS], rows[TAPS];
  [[unroll]] for (uint j = 0; j < TAPS; ++j) taps[j] = vectors[p.taps_at + j * p.width + col];
  [[unroll]] for (uint j = 1; j < TAPS; ++j) rows[j] = value(span, int(p.lead + j) - int(TAPS), col);
  const float bias = p.has_bias != 0 ? vectors[p.bias_at + col] : 0;
  save_index = 0;
  for (uint r = 0; r < span.rows; ++r) {
    [[unroll]] for (uint j = 1; j < TAPS; ++j) rows[j - 1] = rows[j];
    rows[TAPS - 1] = value(span, int(r + p.lead), col);
    float sum = bias;
    [[unroll]] for (uint j = 0; j < TAPS; ++j) sum += taps[j] * rows[j];
    y[p.out_at + (span.first + r) * p.out_stride + col] = activate(p.activation, sum, vec2(0));
    uint state;
    if (!take_save(span, span.before + r + 1, state) || state == kNoState) continue;
    const uint at = (state - p.to_first) * p.state_words + col;
    [[unroll]] for (uint j = 1; j < TAPS; ++j) to[at + (j - 1) * p.width] = rows[j];
  }
}
