#version 450
#extension GL_GOOGLE_include_directive : require
// Pools the rows of a segment into one row. See PoolParams in params.h. A group handles kPoolColumns neighbouring columns (64 bytes of a
// row). Its lanes form LANES / kPoolColumns slices. The rows are divided among the slices, and each lane of a slice handles one column.
#define PUSH PoolParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kPoolKind) const uint KIND = kPoolMean;
const uint SLICES = LANES / kPoolColumns;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Meta { uint meta[]; };

shared float partial[LANES];

// Returns the larger number, or NaN if a or b is NaN. max() is not enough, because it may return the other number if one is NaN.
float larger(float a, float b) { return not_a_number(a) || not_a_number(b) ? NOT_A_NUMBER : max(a, b); }

float both(float a, float b) { return KIND == kPoolMax ? larger(a, b) : a + b; }

void main() {
  if (group() >= p.groups) return;
  const uint segment = group() / p.blocks, slice = LANE / kPoolColumns;
  const uint col = group() % p.blocks * kPoolColumns + LANE % kPoolColumns;
  const uint at = p.segments_at + segment * kSegmentWords, first = meta[at], rows = meta[at + 1], prompt = meta[at + 4];
  // [begin, end) are the bound rows among the rows to be pooled. kPoolCls and kPoolLast pool only one row of the segment.
  const uint wanted_first = KIND == kPoolLast ? first + rows - 1 : first + prompt;
  const uint wanted_rows = KIND == kPoolCls || KIND == kPoolLast ? 1 : rows - prompt;
  const uint begin = max(wanted_first, p.chunk_first), end = min(wanted_first + wanted_rows, p.chunk_first + p.chunk_rows);
  if (begin >= end) return;  // either all lanes of the group return here or none, so no lane waits at a barrier for a lane that returned

  float value = KIND == kPoolMax ? LOWEST : 0;
  for (uint i = begin + slice; i < end; i += SLICES) {
    const float v = x[p.in_at + (i - p.chunk_first) * p.in_stride + min(col, p.width - 1)];
    value = both(value, KIND == kPoolWeightedMean ? float(i - first + 1) * v : v);
  }
  partial[LANE] = value;
  barrier();
  if (slice > 0 || col >= p.width) return;
  for (uint i = 1; i < SLICES; ++i) value = both(value, partial[i * kPoolColumns + LANE]);
  const uint out_at = p.out_at + segment * p.out_stride + col;
  if (begin > wanted_first) value = both(y[out_at], value);
  if (end == wanted_first + wanted_rows) {
    const float n = float(rows - prompt);
    if (KIND == kPoolMean) value /= n;
    if (KIND == kPoolMeanSqrtLen) value /= sqrt(n);
    if (KIND == kPoolWeightedMean) value /= n * float(rows + prompt + 1) / 2;
  }
  y[out_at] = value;
}
