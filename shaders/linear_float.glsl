// linear.glsl for float activations, which are bound at binding 1.
#include "linear.glsl"

layout(set = 0, binding = 1) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) readonly buffer In4 { vec4 x4[]; };

uint activation_at(uint token, uint k) { return p.in_at + token * p.in_stride + k; }

// Returns the activations of a token in columns k to k + 3. k is a multiple of 4.
vec4 four_activations(uint token, uint k) {
  const uint at = activation_at(token, k);
  return ALIGNED != 0 ? x4[at / 4] : vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
}
// Does the same for any number of columns. In formats without blocks, the row may end before column k + 3. Nothing is loaded after the last
// column, and 0 is returned for the missing columns.
vec4 activations(uint token, uint k) {
  if (is_quantized(FORMAT) || k + 4 <= p.cols) return four_activations(token, k);
  vec4 v = vec4(0);
  for (uint i = 0; i < 4; ++i) {
    if (k + i < p.cols) v[i] = x[activation_at(token, k + i)];
  }
  return v;
}
