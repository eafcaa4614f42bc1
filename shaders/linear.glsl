// What matvec, gemm and their int8 and cooperative forms share: LinearParams and its constants in params.h.
#define PUSH LinearParams
#include "common.glsl"
#include "activations.glsl"
#define SECOND_WEIGHTS 5
#include "weights.glsl"

layout(constant_id = kLinearFormat) const uint FORMAT = 0;
layout(constant_id = kLinearFormat2) const uint FORMAT2 = 0;
layout(constant_id = kLinearGated) const uint GATED = 0;
layout(constant_id = kLinearAligned) const uint ALIGNED = 0;
layout(constant_id = kLinearTokens) const uint TOKENS = 1;
layout(constant_id = kLinearOutputs) const uint OUTPUTS = 4;

// A group's OUTPUTS rows of weights make WIDTH columns of `out`: row i belongs to W and column i, or, when GATED, from WIDTH on to W2 and
// column i - WIDTH.
const uint WIDTH = GATED != 0 ? OUTPUTS / 2 : OUTPUTS;

layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 3) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 4) readonly buffer Residual { float residual[]; };

// First token row and first column of `out` of this group. Neighbouring groups share their weights.
uvec2 tile_origin() {
  const uint tiles = (p.tokens + TOKENS - 1) / TOKENS;
  return uvec2(group() % tiles * TOKENS, group() / tiles * WIDTH);
}

// Row of weights `i` of the tile. Rows past the last one read the last one, and their products are not stored.
bool is_second(uint i) { return GATED != 0 && i >= WIDTH; }
Row tile_row(uint first_output, uint i) {
  const uint r = min(first_output + i % WIDTH, p.outputs - 1);
  if (is_second(i)) return row_at(FORMAT2, 1, p.weights2_at, r, p.cols);
  return row_at(FORMAT, 0, p.weights_at, r, p.cols);
}

// Stores one finished product, or with GATED a pair of them.
void store(uint token, uint column, float product, float product2) {
  float value = p.scale * product;
  if (p.has_bias != 0) value += vectors[p.bias_at + column];
  value = soft_capped(activate(p.activation, value, vec2(p.alpha_p, p.alpha_n)), p.softcap);
  if (GATED != 0) value *= p.has_bias2 != 0 ? product2 + vectors[p.bias2_at + column] : product2;
  if (p.has_residual != 0) value += residual[p.residual_at + token * p.residual_stride + column];
  y[p.out_at + token * p.out_stride + column] = value;
}
