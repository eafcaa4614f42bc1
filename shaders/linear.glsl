// Common code of all shaders for Linear and GatedLinear: matvec, matvec_i8, gemm, gemm_i8 and gemm_coopmat. See LinearParams in params.h.
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

// A tile has OUTPUTS rows of weights and WIDTH columns of `out`. Row i of the tile is a row of W and belongs to column i. When GATED, this
// holds for i < WIDTH, and row WIDTH + i is a row of W2 and belongs to column i as well.
const uint WIDTH = GATED != 0 ? OUTPUTS / 2 : OUTPUTS;

layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 3) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 4) readonly buffer Residual { float residual[]; };

// Returns the first token row and the first column of this group's tile. Groups are numbered along the tokens first, so that neighbouring
// groups use the same weights.
uvec2 tile_origin() {
  const uint tiles = (p.tokens + TOKENS - 1) / TOKENS;
  return uvec2(group() % tiles * TOKENS, group() / tiles * WIDTH);
}

// is_second() returns whether row i of the tile's weights belongs to W2. tile_row() returns row i. If i is past the last row of the matrix,
// it returns the matrix's last row; store() is not called for such a row.
bool is_second(uint i) { return GATED != 0 && i >= WIDTH; }
Row tile_row(uint first_output, uint i) {
  const uint r = min(first_output + i % WIDTH, p.outputs - 1);
  if (is_second(i)) return row_at(FORMAT2, 1, p.weights2_at, r, p.cols);
  return row_at(FORMAT, 0, p.weights_at, r, p.cols);
}

// Computes one number of `out` from its finished product, or from its two products when GATED, and stores it.
void store(uint token, uint column, float product, float product2) {
  float value = p.scale * product;
  if (p.has_bias != 0) value += vectors[p.bias_at + column];
  value = soft_capped(activate(p.activation, value, vec2(p.alpha_p, p.alpha_n)), p.softcap);
  if (GATED != 0) value *= p.has_bias2 != 0 ? product2 + vectors[p.bias2_at + column] : product2;
  if (p.has_residual != 0) value += residual[p.residual_at + token * p.residual_stride + column];
  y[p.out_at + token * p.out_stride + column] = value;
}
