// Common code of all shaders for products with weights: matvec, matvec_i8, gemm, gemm_i8 and gemm_coopmat. See LinearParams in params.h.
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
layout(constant_id = kLinearRows) const uint ROWS = kRowsAll;

// WIDTH is the number of columns of `out` that a tile computes with its OUTPUTS rows of weights. If GATED, column i needs two of these
// rows: row i, which is a row of W, and row WIDTH + i, which is a row of W2.
const uint WIDTH = GATED != 0 ? OUTPUTS / 2 : OUTPUTS;

layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 3) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 4) readonly buffer Residual { float residual[]; };
layout(set = 0, binding = 6) readonly buffer RouteRows { float route[]; };
layout(set = 0, binding = 6) readonly buffer List { uint list[]; };

// These variables describe the tile of this group. find_tile() sets them.
uint tile_matrix;  // index of the tile's matrix among the bound matrices
uint tile_first;   // the tile's first row of `in`; with kRowsOfPairs its first pair; with kRowsListed its first place in the list
uint tile_count;   // number of rows in the tile, at most TOKENS
uint tile_column;  // the tile's first column of `out`
// The pair of each row of the tile, used only with kRowsListed. The pairs are copied from the list, because all lanes read them many times.
shared uint tile_pairs[ROWS == kRowsListed ? TOKENS : 1];

bool has(uint what) { return (p.has & what) != 0; }
bool has_pairs() { return ROWS == kRowsOfPairs || ROWS == kRowsListed; }
uint tiles_of_rows() { return (p.tokens + TOKENS - 1) / TOKENS; }
uint list_place(uint place) { return tiles_of_rows() * kListTileWords + place * kListPlaceWords; }
uint route_of(uint pair) { return p.route_at + pair / p.chosen * p.route_stride + pair % p.chosen; }

// Sets the variables of this group's tile. Returns whether this dispatch computes the tile. All lanes must call this. Groups are numbered
// along the rows first, so that neighbouring groups use the same weights.
bool find_tile() {
  if (group() >= p.groups) return false;
  const uint tiles = tiles_of_rows(), columns = (p.outputs + WIDTH - 1) / WIDTH, tile = group() % tiles, rest = group() / tiles;
  tile_column = rest % columns * WIDTH;
  tile_matrix = rest / columns;
  tile_first = tile * TOKENS;
  tile_count = min(TOKENS, p.tokens - tile_first);
  if (ROWS == kRowsOfPairs) {
    const float expert = route[route_of(tile)];
    tile_matrix = (expert >= 0 && expert < float(p.matrices) ? uint(expert) : 0) - p.matrix_first;
  }
  if (ROWS == kRowsListed) {
    tile_matrix = list[tile * kListTileWords] - p.matrix_first;
    tile_first = list[tile * kListTileWords + 1];
    tile_count = list[tile * kListTileWords + 2];
    if (tile_count == 0 || tile_matrix >= p.matrix_count) return false;
    for (uint i = LANE; i < TOKENS; i += LANES) tile_pairs[i] = list[list_place(tile_first + min(i, tile_count - 1))];
    barrier();
  }
  return tile_matrix < p.matrix_count;
}

// Returns the row of `in` for row i of the tile, or for the tile's last row if the tile has no row i.
uint in_row(uint i) {
  if (ROWS == kRowsListed) return has(kInByPair) ? tile_pairs[i] : tile_pairs[i] / p.chosen;
  const uint row = tile_first + min(i, tile_count - 1);
  return ROWS == kRowsOfPairs && !has(kInByPair) ? row / p.chosen : row;
}
// Returns the column of `in` where the activations of the tile begin.
uint in_column() { return ROWS == kRowsOfHeads ? (p.matrix_first + tile_matrix) * p.in_step : 0; }

// is_second() returns whether row i of the tile's weights belongs to W2. tile_row() returns row i, or the matrix's last row if row i is
// past the end of the matrix. store() ignores the product with such a row.
bool is_second(uint i) { return GATED != 0 && i >= WIDTH; }
Row tile_row(uint i) {
  uint r = min(tile_column + i % WIDTH, p.outputs - 1);
  if (ROWS != kRowsAll) r += tile_matrix * p.matrix_rows;
  if (is_second(i)) return row_at(FORMAT2, 1, p.weights2_at, r, p.cols);
  return row_at(FORMAT, 0, p.weights_at, r, p.cols);
}

// Computes one number of `out` from its product, or from its two products when GATED, and stores the number. `i` is the row in the tile,
// `j` is the column in the tile. Does nothing if the tile has no row i, or if `out` has no such column.
void store(uint i, uint j, float product, float product2) {
  uint column = tile_column + j;
  if (i >= tile_count || column >= p.outputs) return;
  uint row = ROWS == kRowsListed ? tile_pairs[i] : tile_first + i, bias = column;
  if (ROWS != kRowsAll) bias += (p.matrix_first + tile_matrix) * p.matrix_rows;
  float value = p.scale * product;
  if (has_pairs() && has(kHasWeight)) {
    const float weight = ROWS == kRowsListed ? uintBitsToFloat(list[list_place(tile_first + i) + 1]) : route[route_of(row) + p.chosen];
    value *= weight;
    product2 *= weight;
  }
  if (has(kHasBias)) value += vectors[p.bias_at + bias];
  if (GATED != 0) {
    if (has(kHasBias2)) product2 += vectors[p.bias2_at + bias];
    if (p.limit > 0) {  // comparisons are used and not min() and clamp(), so that a NaN stays a NaN
      if (value > p.limit) value = p.limit;
      if (product2 > p.limit) product2 = p.limit;
      if (product2 < -p.limit) product2 = -p.limit;
    }
  }
  value = soft_capped(activate(p.activation, value, vec2(p.alpha_p, p.alpha_n)), p.softcap);
  if (GATED != 0) value *= product2 + p.shift;
  if (has(kHasResidual)) value += residual[p.residual_at + row * p.residual_stride + column];
  if (ROWS == kRowsOfHeads) column += (p.matrix_first + tile_matrix) * p.out_step;
  y[p.out_at + row * p.out_stride + column] = value;
}
