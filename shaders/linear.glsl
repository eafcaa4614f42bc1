// What matvec, gemm and their int8 and cooperative forms share. LinearParams and its constants are in params.h.
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

// A group's OUTPUTS rows of weights make WIDTH columns of `out`. Row i is row i of W, for column i. When GATED, rows from WIDTH on are of
// W2 instead, for column i - WIDTH.
const uint WIDTH = GATED != 0 ? OUTPUTS / 2 : OUTPUTS;

layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 3) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 4) readonly buffer Residual { float residual[]; };

// Returns the first token row and the first column of `out` for this group. Neighbouring groups use the same weights.
uvec2 tile_origin() {
  const uint tiles = (p.tokens + TOKENS - 1) / TOKENS;
  return uvec2(group() % tiles * TOKENS, group() / tiles * WIDTH);
}

// Returns row `i` of the tile's weights. For rows past the last one it returns the last one; their products are not stored.
bool is_second(uint i) { return GATED != 0 && i >= WIDTH; }
Row tile_row(uint first_output, uint i) {
  const uint r = min(first_output + i % WIDTH, p.outputs - 1);
  if (is_second(i)) return row_at(FORMAT2, 1, p.weights2_at, r, p.cols);
  return row_at(FORMAT, 0, p.weights_at, r, p.cols);
}

// Stores one finished product, or a pair of products when GATED.
void store(uint token, uint column, float product, float product2) {
  float value = p.scale * product;
  if (p.has_bias != 0) value += vectors[p.bias_at + column];
  value = soft_capped(activate(p.activation, value, vec2(p.alpha_p, p.alpha_n)), p.softcap);
  if (GATED != 0) value *= p.has_bias2 != 0 ? product2 + vectors[p.bias2_at + column] : product2;
  if (p.has_residual != 0) value += residual[p.residual_at + token * p.residual_stride + column];
  y[p.out_at + token * p.out_stride + column] = value;
}
