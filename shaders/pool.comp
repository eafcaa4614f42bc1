#version 450
#extension GL_GOOGLE_include_directive : require
// One row from the rows of a segment; PoolParams in params.h. kPoolColumns neighbouring lanes have a column each (64 bytes of a row),
// LANES / kPoolColumns slices share the rows.
#define PUSH PoolParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kPoolKind) const uint KIND = 0;
const uint MEAN = 0, CLS = 1, LAST = 2, MAX = 3, MEAN_SQRT_LEN = 4, WEIGHTED_MEAN = 5;  // PoolKind
const uint SLICES = LANES / kPoolColumns;

layout(set = 0, binding = 0) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 2) readonly buffer Meta { uint meta[]; };

shared float partial[LANES];

// max() may drop a NaN.
float larger(float a, float b) { return not_a_number(a) || not_a_number(b) ? NOT_A_NUMBER : max(a, b); }

void main() {
  if (group() >= p.groups) return;
  const uint segment = group() / p.blocks, slice = LANE / kPoolColumns;
  const uint col = group() % p.blocks * kPoolColumns + LANE % kPoolColumns;
  const uint first = meta[p.segments_at + segment * kSegmentWords] - p.first_row, rows = meta[p.segments_at + segment * kSegmentWords + 1];
  const uint in_at = p.in_at + first * p.in_stride + min(col, p.width - 1);

  float value = KIND == MAX ? LOWEST : 0;
  if (KIND == CLS) {
    value = x[in_at];
  } else if (KIND == LAST) {
    value = x[in_at + (rows - 1) * p.in_stride];
  } else {
    for (uint i = slice; i < rows; i += SLICES) {
      const float v = x[in_at + i * p.in_stride];
      if (KIND == MAX) {
        value = larger(value, v);
      } else {
        value += KIND == WEIGHTED_MEAN ? float(i + 1) * v : v;
      }
    }
    partial[LANE] = value;
    barrier();
    if (slice == 0) {
      for (uint i = 1; i < SLICES; ++i) {
        const float other = partial[i * kPoolColumns + LANE];
        value = KIND == MAX ? larger(value, other) : value + other;
      }
    }
  }
  const float n = float(rows);
  if (KIND == MEAN) value /= n;
  if (KIND == MEAN_SQRT_LEN) value /= sqrt(n);
  if (KIND == WEIGHTED_MEAN) value /= n * (n + 1) / 2;
  if (slice == 0 && col < p.width) y[p.out_at + segment * p.out_stride + col] = value;
}
