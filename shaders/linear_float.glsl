// linear.glsl with float activations at binding 1.
#include "linear.glsl"

layout(set = 0, binding = 1) readonly buffer In { float x[]; };
layout(set = 0, binding = 1) readonly buffer In4 { vec4 x4[]; };

// Four activations of a token from column k, a multiple of 4. Behind the last column may be anything, or no memory at all; only rows of
// formats without blocks can end inside the four.
vec4 activations(uint token, uint k) {
  const uint at = p.in_at + token * p.in_stride + k;
  if (!is_quantised(FORMAT) && k + 4 > p.cols) {
    vec4 v = vec4(0);
    for (uint i = 0; i < 4; ++i) {
      if (k + i < p.cols) v[i] = x[at + i];
    }
    return v;
  }
  return ALIGNED != 0 ? x4[at / 4] : vec4(x[at], x[at + 1], x[at + 2], x[at + 3]);
}
