#version 450
#extension GL_GOOGLE_include_directive : require
// Computes out = scale * a * activation(b), where each column of `b` is used for `span` neighbouring columns of `a`. If span is 0, there is
// no `b`, and out = scale * a. See MultiplyParams in params.h.
#define PUSH MultiplyParams
#include "common.glsl"
#include "activations.glsl"

layout(set = 0, binding = 0) readonly buffer A { float a[]; };
layout(set = 0, binding = 1) readonly buffer B { float b[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };

void main() {
  if (group() >= p.groups) return;
  const uint row = group() / p.blocks, first = group() % p.blocks * LANES * kMultiplyPerLane;
  [[unroll]] for (uint i = 0; i < kMultiplyPerLane; ++i) {
    const uint c = first + i * LANES + LANE;
    if (c >= p.width) continue;
    const float factor = p.span == 0 ? p.scale : p.scale * activate(p.activation, b[p.b_at + row * p.b_stride + c / p.span], vec2(0));
    y[p.out_at + row * p.out_stride + c] = a[p.a_at + row * p.a_stride + c] * factor;
  }
}
