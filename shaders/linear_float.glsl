// The code of linear.glsl, and functions that load float activations from binding 1.
#include "linear.glsl"

layout(set = 0, binding = 1) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) readonly buffer In4 { vec4 x4[]; };

// Returns the index in `x` at which the activations for row i of the tile begin.
uint activation_row(uint i) { return p.in_at + in_row(i) * p.in_stride + in_column(); }

// Returns the activations in columns k to k + 3 of the row that begins at word `row`. k is a multiple of 4.
vec4 four_activations(uint row, uint k) {
  const uint at = row + k;
  return ALIGNED != 0 ? x4[at / 4] : vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
}
// Does the same as four_activations(), but may also be called at the end of a row. In formats without blocks, the row may end before column
// k + 3. Nothing is loaded after the last column, and 0 is returned for the missing columns.
vec4 activations(uint row, uint k) {
  if (is_quantized(FORMAT) || k + 4 <= p.cols) return four_activations(row, k);
  vec4 v = vec4(0);
  for (uint i = 0; i < 4; ++i) {
    if (k + i < p.cols) v[i] = x[row + k + i];
  }
  return v;
}
