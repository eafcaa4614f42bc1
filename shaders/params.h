// The interface between host and shaders: blocks of push constants, and the ids of specialisation constants. Both the C++ code and the
// shaders include this file.
//
// Names: a group is a workgroup, and a lane is an invocation. A bound range is the part of a buffer that a dispatch binds to one of the
// shader's bindings. Names in capitals (LANES, TOKENS, ...) are specialisation constants as the shaders call them.
//
// Units: a member `..._at` is an offset in words (4 bytes) from the start of the bound range, and `..._stride` is the number of words from
// one row to the next. All members are 4 bytes wide, so that they have the same layout in std430 and in C++. A block has at most 128 bytes.
//
// Every block begins with first_group and groups. The host may cut an operation into several dispatches, and each of them runs groups
// [first_group, groups). Comments "groups = ..." give the number of groups of the whole operation.
//
// Every binding of a shader needs a buffer, even if the specialisation constants are such that the shader does not read the binding. Vulkan
// demands this, because the shader's code names the binding (a static use).
//
// All vectors of a model (norm weights, biases, slopes, tables of distances) lie in one buffer. The bound range `vectors` is the part of
// this buffer with the vectors that a dispatch needs.
#ifndef PUMICE_SHADERS_PARAMS_H
#define PUMICE_SHADERS_PARAMS_H

#ifdef __cplusplus
#include <cstdint>
namespace pumice::vulkan::params {
using uint = std::uint32_t;
#define PUMICE_CONSTANT(name, value) inline constexpr uint name = value
#else
#define PUMICE_CONSTANT(name, value) const uint name = value
#endif

// LANES of every shader: the number of invocations per workgroup, a power of two from 32 to 256.
PUMICE_CONSTANT(kSpecLanes, 0);

// ------------------------------------- Linear, GatedLinear, HeadLinear, Experts: matvec, gemm, matvec_i8, gemm_i8, gemm_coopmat
// Multiply rows of activations by rows of weights. `.` is a dot product:
//   out[t][r] = softcap(activation(scale * in[t] . W[r] + bias[r])) + residual[t][r]
// If GATED, there is a second matrix W2, scale is 1, and there is neither softcap nor residual:
//   out[t][r] = activation(min(g, limit)) * (clamp(u, -limit, limit) + shift), g = in[t] . W[r] + bias[r], u = in[t] . W2[r] + bias2[r]
// If the rows of weights lie in several bound ranges, there is a dispatch for each range. It computes the outputs for the bound rows, and
// all `..._at` members except in_at and route_at are the offsets for the first of these outputs.

// The constant ROWS says which rows of `in` are multiplied by which matrix.
//   kRowsAll: there is one matrix, by which all rows are multiplied.
//   kRowsOfHeads (HeadLinear): there is a stack of matrices, one for each head. Head h of a row has columns h * in_step to
//     h * in_step + cols - 1 of `in`, and its results begin at column h * out_step of `out`.
//   kRowsOfPairs (Experts with few rows; TOKENS is 1): there is a stack of matrices, one for each expert. Pair i is row i / chosen of the
//     batch and one of the row's `chosen` experts. Row i of `out` is for pair i. Row i of `in` is for pair i if kInByPair is set, and for
//     row i of the batch otherwise.
//   kRowsListed (Experts with many rows): the same, but with the list of pairs that sort.comp wrote. All pairs of a tile have one expert.
// A dispatch computes only the matrices of a stack that are bound: [matrix_first, matrix_first + matrix_count).

// Bindings: 0 weights, 1 in (float rows; for the _i8 shaders, rows that quantize.comp wrote), 2 out, 3 vectors (bias, bias2), 4 residual
// (may be the same range as out), 5 weights2, 6 the rows that Route wrote (kRowsOfPairs) or the list (kRowsListed).
struct LinearParams {
  // groups = ceil(tokens / TOKENS) * ceil(outputs / (GATED ? OUTPUTS / 2 : OUTPUTS)); with kRowsOfHeads, this product times
  // matrix_count
  uint first_group, groups;
  // tokens: number of rows of `in`; with kRowsOfPairs, number of pairs; with kRowsListed, TOKENS times the number of tiles in the list.
  uint tokens, outputs, cols;
  // Multiples of 4. Each row of weights has device_row_words(format, cols) words, and there are no gaps between rows.
  uint weights_at, weights2_at;
  uint in_at, in_stride;  // for the _i8 shaders: multiples of 4, and in_stride is quantized_row_words(columns of `in`)
  uint out_at, out_stride;
  uint bias_at, bias2_at;
  uint residual_at, residual_stride;
  uint activation;         // a pumice::Activation, as its number
  uint has;                // sum of the constants from kHasBias to kInByPair (below) that apply
  float scale, softcap;    // softcap: 0 for no softcap
  float alpha_p, alpha_n;  // parameters of the activation xielu
  float limit, shift;      // limit: 0 for no limit
  // matrices: number of matrices in the stack (see kRowsOfHeads); matrix_rows: number of rows of each of these matrices
  uint matrices, matrix_rows, matrix_first, matrix_count;
  uint in_step, out_step;               // only for kRowsOfHeads, else 0; multiples of 32 if the format is quantized
  uint route_at, route_stride, chosen;  // only for kRowsOfPairs and kRowsListed
};
PUMICE_CONSTANT(kHasBias, 1);
PUMICE_CONSTANT(kHasBias2, 2);
PUMICE_CONSTANT(kHasResidual, 4);
PUMICE_CONSTANT(kHasWeight, 8);  // each product is multiplied by the routing weight of its pair (Experts::weighs_input)
PUMICE_CONSTANT(kInByPair, 16);  // `in` has a row for each pair (see kRowsOfPairs)
// Below are the specialisation constants. Activation, bias and residual are not among them, because push constants are as fast, and a model
// then needs only half as many pipelines.
PUMICE_CONSTANT(kLinearFormat, 1);   // the Format of `weights`, as its index in formats.def
PUMICE_CONSTANT(kLinearFormat2, 2);  // the Format of `weights2`, as its index in formats.def; equal to kLinearFormat when not GATED
PUMICE_CONSTANT(kLinearGated, 3);    // 0 or 1
PUMICE_CONSTANT(kLinearAligned, 4);  // 1 if in_at and in_stride are multiples of 4, so that a vec4 can be loaded at once, else 0
// A group multiplies one tile: TOKENS rows of `in` by OUTPUTS rows of weights. If GATED, OUTPUTS is even, and the first half of the rows of
// weights belongs to W, the second half to W2.
//   matvec, matvec_i8: TOKENS and OUTPUTS are 1, 2, 4 or 8. TOKENS * OUTPUTS <= 32, and TOKENS * OUTPUTS * LANES <= 3072.
//   gemm, gemm_i8: OUTPUTS is 32, 64 or 128. LANES = TOKENS * OUTPUTS / (8 R), where R, the number of tokens per lane, is 2, 4 or 8.
//     2 LANES <= 3 (TOKENS + OUTPUTS), because finish() in gemm_tile.glsl needs 2 uvec4 of the tile for each lane.
//     Bytes of shared memory: (TOKENS + OUTPUTS) * 80 in gemm or * 64 in gemm_i8, plus 128 (code_values), plus 4 * TOKENS with kRowsListed.
//     Examples: LANES 64, TOKENS 64, OUTPUTS 64, or LANES 128, TOKENS 128, OUTPUTS 64. For few rows: LANES 64, TOKENS 32, OUTPUTS 32.
//   gemm_coopmat: The number of subgroups (LANES / SUBGROUP) is 1 or even. If it is even, the outputs are divided into 2 parts and the
//     tokens into subgroups / 2 parts. Each subgroup computes one part of the tokens by one part of the outputs: a multiple of M tokens by
//     a multiple of 2 N outputs. K divides 32. The pipeline needs full subgroups of SUBGROUP lanes.
//     Bytes of shared memory: (TOKENS + OUTPUTS) * 80, plus 128 (code_values), plus 4 M N for each subgroup (8 M N if GATED), plus 4 *
//     TOKENS with kRowsListed.
//     Examples for M = N = K = 16 and SUBGROUP 32: LANES 128, TOKENS 64, OUTPUTS 64, or LANES 256, TOKENS 128, OUTPUTS 128.
PUMICE_CONSTANT(kLinearTokens, 5);
PUMICE_CONSTANT(kLinearOutputs, 6);
PUMICE_CONSTANT(kLinearRows, 7);  // kRowsAll, kRowsOfHeads, kRowsOfPairs or kRowsListed
PUMICE_CONSTANT(kRowsAll, 0);
PUMICE_CONSTANT(kRowsOfHeads, 1);
PUMICE_CONSTANT(kRowsOfPairs, 2);
PUMICE_CONSTANT(kRowsListed, 3);
// M, N and K of gemm_coopmat: a cooperative matrix product is M x K by K x N (f16 x f16 -> f32), a shape that the device supports.
PUMICE_CONSTANT(kLinearCoopM, 8);
PUMICE_CONSTANT(kLinearCoopN, 9);
PUMICE_CONSTANT(kLinearCoopK, 10);
PUMICE_CONSTANT(kLinearCoopSubgroup, 11);  // SUBGROUP of gemm_coopmat: number of lanes in a subgroup

// ---------------------------------------------------------------- Route: route.comp
// Chooses the experts of each row. The members have the meaning of the members of Route in core/ops.h; expert_groups is Route::groups.
// A workgroup chooses the experts of one row, so groups = rows. Bindings: 0 logits, 1 vectors (bias, scales), 2 out.
struct RouteParams {
  uint first_group, groups;
  uint experts, chosen, expert_groups, kept;
  uint logits_at, logits_stride, out_at, out_stride;
  uint bias_at, scales_at, has_bias, has_scales;
  uint normalised;
  float floor, scale;
};
PUMICE_CONSTANT(kRouteScore, 1);  // kRouteSoftmax or kRouteSigmoid
PUMICE_CONSTANT(kRouteSoftmax, 0);
PUMICE_CONSTANT(kRouteSigmoid, 1);
PUMICE_CONSTANT(kRouteExperts, 4096);  // maximum number of experts, kMaxExperts of core/kinds.h
PUMICE_CONSTANT(kRouteChosen, 64);     // maximum number of chosen experts per row, kMaxChosen of core/kinds.h

// ---------------------------------------------------------------- Experts of many rows: sort.comp
// Sorts pairs (row, chosen expert) by expert, and cuts the pairs of each expert into tiles of at most tile_rows pairs. A group does this
// for one expert, so groups = experts. The result is a list:
//   First, `tiles` tiles of kListTileWords words, {expert, place of the first pair, number of pairs}.
//   Then a place for each pair, in sorted order. It has kListPlaceWords words, {pair, float weight}.
// The tiles of expert e begin at tile (number of pairs of experts before e) / tile_rows + e. At this index, they cannot overlap the tiles
// of another expert, so a group need not know how many tiles other experts have. `tiles` is pairs / tile_rows + experts, and unused tiles
// have 0 pairs.
// Bindings: 0 the rows that Route wrote, 1 list.
struct SortParams {
  uint first_group, groups;
  uint experts, pairs, chosen, tiles, tile_rows;
  uint route_at, route_stride;
};
PUMICE_CONSTANT(kListTileWords, 3);
PUMICE_CONSTANT(kListPlaceWords, 2);

// ---------------------------------------------------------------- Experts, the end: fold.comp
// Adds up the results of each row's experts: out[t] = residual[t] + scale * sum over j, ascending, of weight[t][j] * in[t * chosen + j].
// If `weighed` is 0, all weights are 1. groups = rows * blocks, blocks = ceil(width / (LANES * kFoldPerLane)).
// Bindings: 0 in, 1 the rows that Route wrote (weight), 2 residual (may be the same range as out), 3 out.
struct FoldParams {
  uint first_group, groups;
  uint blocks, width, chosen, weighed, has_residual;
  uint in_at, in_stride, route_at, route_stride, residual_at, residual_stride, out_at, out_stride;
  float scale;
};
PUMICE_CONSTANT(kFoldPerLane, 4);

// ---------------------------------------------------------------- Embed: gather
// Looks up rows of the table W: out[r] = (ADD ? out[r] : 0) + scale * W[meta[index_at + r]]. There is one group for each row r.
// Only rows [chunk_first, chunk_first + chunk_rows) of W are bound. out[r] is not changed if its index is outside of this range.
// Bindings: 0 weights, 1 meta, 2 out.
struct GatherParams {
  uint first_group, groups;
  uint cols;
  uint weights_at, chunk_first, chunk_rows;
  uint index_at;
  uint out_at, out_stride;
  float scale;
};
PUMICE_CONSTANT(kGatherFormat, 1);
PUMICE_CONSTANT(kGatherAdd, 2);  // 0 or 1

// ---------------------------------------------------------------- Quantize: float rows to int8, for the _i8 products
// Each 32 columns of a row get one scale, max|x| / 127. The code of a column is x / scale, rounded to the nearest integer (ties to even).
// `cols` is a multiple of 32. A row of the output has cols / 4 words of codes (one byte per column, in order), then cols / 32 float
// scales, then padding to a multiple of 4 words.
// Bindings: 0 in, 1 out.
struct QuantizeParams {
  uint first_group, groups;  // groups = ceil(tokens * cols / 4 / LANES)
  uint tokens, cols;
  uint in_at, in_stride;
  uint out_at, out_stride;  // out_stride = quantized_row_words(cols)
};
PUMICE_CONSTANT(kQuantizeAligned, 1);  // 1 if in_at and in_stride are multiples of 4, so that a vec4 can be loaded at once, else 0

#ifdef __cplusplus
constexpr std::int64_t quantized_row_words(std::int64_t cols) { return (cols / 4 + cols / 32 + 3) / 4 * 4; }
constexpr std::int64_t list_tiles(std::int64_t pairs, std::int64_t experts, std::int64_t tile_rows) { return pairs / tile_rows + experts; }
constexpr std::int64_t list_words(std::int64_t pairs, std::int64_t tiles) { return tiles * kListTileWords + pairs * kListPlaceWords; }
static_assert(sizeof(LinearParams) <= 128 && sizeof(GatherParams) <= 128 && sizeof(QuantizeParams) <= 128 && sizeof(RouteParams) <= 128 &&
              sizeof(SortParams) <= 128 && sizeof(FoldParams) <= 128);
#endif

// ---------------------------------------------------------------- tables of a batch, in the buffer `meta`
// A segment table has kSegmentWords words per segment: {first row in the batch, rows, past, pages, prompt, unseen}. These are members of
// Segment in core/batch.h, except that `pages` is the index in `meta` at which the segment's list of page ids begins. Entry i of the list
// is the page of positions [32 i, 32 i + 32). Encoders have no cache, so their keys and values are stored in pages in the run's scratch
// memory, in format f32, and `past` is 0.
PUMICE_CONSTANT(kSegmentWords, 6);
PUMICE_CONSTANT(kPagePositions, 32);  // number of positions in a page, kPageTokens of core/batch.h
// Values of FORMAT, the format of keys and values. number() in vulkan/numbers.h converts a KvFormat to one of them.
PUMICE_CONSTANT(kKvF16, 0);
PUMICE_CONSTANT(kKvF32, 1);
PUMICE_CONSTANT(kKvQ8, 2);

// A page holds the keys (page of K) or the values (page of V) of 32 positions in one layer. It has one block for each kv head, and then
// padding to a multiple of 64 words (256 bytes), so that a bound range may begin at any page. A block is
//   word[units][32 positions] in a page of K, or
//   word[32 positions][units] in a page of V,
//   followed in q8_0 by float[32], the scales of the positions. In q8_0 a number is scale * code.
// A word holds 1 (f32), 2 (f16) or 4 (q8_0) neighbouring numbers of one position. `units` is the number of words that a position takes in a
// block (kv_units). Each key and each value is padded with zeros to a multiple of 8 numbers (padded_dim).
#ifdef __cplusplus
constexpr std::uint32_t padded_dim(std::uint32_t dim) { return (dim + 7) / 8 * 8; }
constexpr std::uint32_t kv_units(std::uint32_t format, std::uint32_t dim) {
  return padded_dim(dim) / (format == kKvF32 ? 1 : format == kKvF16 ? 2 : 4);
}
// Returns the number of words in a page of keys (or of values) whose heads have `dim` numbers.
constexpr std::uint64_t kv_page_words(std::uint32_t format, std::uint32_t dim, std::uint32_t kv_heads) {
  return (std::uint64_t{kv_heads} * kPagePositions * (kv_units(format, dim) + (format == kKvQ8 ? 1 : 0)) + 63) / 64 * 64;
}
#endif

// ---------------------------------------------------------------- Norm: norm.comp
// A group normalises one head of one row, so groups = rows * heads. A head has Norm::group columns, or all columns of a row if Norm::group
// is 0. LANES is norm_lanes(width, limit). Bindings: 0 in, 1 out, 2 add, 3 vectors (weight, bias). in, out and add may be the same range.
struct NormParams {
  uint first_group, groups;
  uint heads;  // number of heads in a row
  uint width;  // number of columns in a head
  uint in_at, in_stride, out_at, out_stride, add_at, add_stride;
  uint weight_at, bias_at;
  uint head_values;  // `width` if each head has its own values of weight and bias, or 0 if all heads share them
  float eps;
};
PUMICE_CONSTANT(kNormKind, 1);    // kNormRms or kNormLayer
PUMICE_CONSTANT(kNormWeight, 2);  // 0 or 1
PUMICE_CONSTANT(kNormBias, 3);    // 0 or 1
PUMICE_CONSTANT(kNormAdd, 4);     // 0 or 1
// Number of values that a lane loads at once. The host chooses it by norm_batch(width, LANES), for speed; any number from 1 on is correct.
PUMICE_CONSTANT(kNormBatch, 5);
// Values of kNormKind. number() in vulkan/numbers.h converts a NormKind to one of them.
PUMICE_CONSTANT(kNormRms, 0);
PUMICE_CONSTANT(kNormLayer, 1);

// ---------------------------------------------------------------- Multiply: multiply.comp
// Computes out[r][c] = scale * a[r][c] * activation(b[r][c / span]): each column of `b` is used for `span` neighbouring columns of `a`. If
// `span` is 0, there is no `b`, and out[r][c] = scale * a[r][c].
// groups = rows * blocks, blocks = ceil(width / (LANES * kMultiplyPerLane)). Bindings: 0 a, 1 b, 2 out (may be the same range as a).
struct MultiplyParams {
  uint first_group, groups;
  uint blocks, width, span;
  uint a_at, a_stride, b_at, b_stride, out_at, out_stride;
  uint activation;  // a pumice::Activation other than xielu, as its number
  float scale;
};
PUMICE_CONSTANT(kMultiplyPerLane, 4);

// ---------------------------------------------------------------- Rope, Store, and an encoder's keys and values: store.comp
// Does up to three things: rotates the heads of q and k in place (if pairs > 0), multiplies q by a factor for each row (if q_factors is 1),
// and stores the rotated k, and v, in those of their pages that are bound (if page_count > 0). For a single Rope, Rope::x is bound as q,
// and kv_heads is 0. For a single Store, q_heads and pairs are 0.
// If one bound range cannot hold all pages, there is one dispatch for each range. Only the first dispatch rotates; the others have
// q_heads = 0 and pairs = 0. They need a barrier after the first one, because they store the k that it has rotated.
// A unit is one head of one row of q, k or v. A group handles LANES / SPAN units:
//   groups = ceil(rows * (q_heads + kv_heads + (page_count > 0 ? kv_heads : 0)) / (LANES / SPAN))
// Bindings: 0 q, 1 k, 2 v, 3 pages of K, 4 pages of V, 5 meta. q, k and v may be the same range.
struct StoreParams {
  uint first_group, groups;
  uint rows, q_heads, kv_heads;
  uint pairs, interleaved;  // pairs: size of RopeTable::inv_freq, or 0 if nothing is rotated; interleaved: 0 or 1
  uint q_at, q_stride, k_at, k_stride, v_at, v_stride;
  uint cells_at;               // index in meta of one number per row, page id * 32 + position % 32
  uint turns_at;               // index in meta of float cos[pairs], sin[pairs] for each row, both multiplied by RopeTable::magnitude
  uint factors_at, q_factors;  // factors_at: index in meta of the float factor of q for each row; q_factors: 0 or 1
  uint page_first, page_count;
  uint k_page_words, v_page_words;
};
PUMICE_CONSTANT(kStoreFormat, 1);    // kKvF16, kKvF32 or kKvQ8
PUMICE_CONSTANT(kStoreKeyDim, 2);    // KEY_DIM: numbers in a head of q or k, 1 to 576
PUMICE_CONSTANT(kStoreValueDim, 3);  // VALUE_DIM: numbers in a head of v, 1 to 512
PUMICE_CONSTANT(kStoreSpan, 4);      // SPAN: lanes per unit, store_span(max(KEY_DIM, VALUE_DIM), LANES)

// ---------------------------------------------------------------- Attend: attend.comp, merge.comp
// Row i of a segment is at position s = past + i. It attends to the keys at positions
//   [max(0, s - behind), min(past + rows - unseen - 1, s + ahead)].
//   If chunk > 0, the first position is floor(s / chunk) * chunk instead, which is where the chunk of position s begins.
//   If the operation is causal, behind = window > 0 ? window - 1 : kNoWindow, and ahead = 0.
//   If it is not causal, behind = ahead = window > 0 ? window : kNoWindow.

// The score of the key at position j for a query at position s is
//   softcap(scale * q.k) + bias[head][clamp(j - s, -reach, reach) + reach] - slopes[head] * |j - s|.
// With `places` (relative positions), there are no bias and no slopes, and `past` is 0. The score is
//   softcap(scale * (q.k + by_query[row of the query][head * by_head + p] + by_key[row of the key][head * by_head + p])),
//   where p = places[clamp(j - s, -reach, reach) + reach].
// With sinks, each head's softmax has one more score, sinks[head], for a key with the value 0.
// With bias or places, meta has kDistanceWords words: {reach, by_query_at, by_key_at, by_stride, by_head}. by_query_at and by_key_at are
// the offsets of by_query and by_key in binding 6, by_stride is the stride of their rows, and by_head is the number of their columns per
// head.

// The algorithm is FlashAttention (Dao et al. 2022). The query heads that share a kv head are computed together (grouped queries).
// The queries are divided into tiles. The tile table in meta has kTileWords words per tile: {index of the segment in the table at
// segments_at, first row within the segment, rows, 0}. Tiles with many keys should come first, so that the last tiles to run are short.
// The keys to which a tile attends are divided into `splits` equal splits (Flash-Decoding). A group computes one tile for tile_heads heads
// of one kv head, over one split:
//   groups = tiles * kv_heads * head_blocks * splits, head_blocks = ceil(heads_per_kv / tile_heads)
// attend_tile() chooses QUERIES, KEYS, tile_heads and the maximum number of rows in a tile. LANES is kAttendLanes. A group uses at most
// 14 KiB of shared memory.

// If one bound range cannot hold all pages, there is one dispatch for each range. A dispatch skips keys whose pages it does not bind. The
// result of a query then has parts = ranges * splits parts. The group for split number `split` computes part part_first + split, where
// part_first is (index of the range) * splits. Part 0 includes the sink.
// If there is one part, the result is written to `out`. Otherwise the parts are written to `partials`, and merge.comp combines them:
//   Query n is (row - first_row) * heads + head, where heads = kv_heads * heads_per_kv. Part p of its result has the weighted sum of values
//   at (n * parts + p) * padded_dim(VALUE_DIM), and {largest score, sum of the weights} at states_at + (n * parts + p) * 2.
//   The sum is 0 if a part has no keys and no sink. `partials` has attend_partial_words() words.

// Bindings: 0 q, 1 pages of K, 2 pages of V, 3 meta, 4 `out` or `partials`, 5 vectors (bias, slopes, sinks, places), 6 the rows of by_query
// and by_key.
struct AttendParams {
  uint first_group, groups;
  uint tiles, kv_heads, heads_per_kv, tile_heads, head_blocks, splits;
  uint part_first, parts, states_at;
  uint tiles_at, segments_at;
  uint first_row;  // row of the batch at which the bound ranges of q, out and partials begin
  uint page_first, page_count;
  uint k_page_words, v_page_words;
  uint behind, ahead, chunk;
  uint q_at, q_stride, out_at, out_stride;
  float scale, softcap;  // softcap: 0 for no softcap
  uint bias_at, slopes_at, sinks_at, places_at;
  uint distances_at;  // index of the kDistanceWords words in meta; not used without bias and places
};
PUMICE_CONSTANT(kTileWords, 4);
PUMICE_CONSTANT(kDistanceWords, 5);
PUMICE_CONSTANT(kNoWindow, 0x7fffffff);
PUMICE_CONSTANT(kAttendLanes, 64);
PUMICE_CONSTANT(kAttendFormat, 1);    // kKvF16, kKvF32 or kKvQ8
PUMICE_CONSTANT(kAttendKeyDim, 2);    // KEY_DIM: numbers in a head of q or K, 1 to 576
PUMICE_CONSTANT(kAttendValueDim, 3);  // VALUE_DIM: numbers in a head of V or out, 1 to 512
PUMICE_CONSTANT(kAttendQueries, 4);   // QUERIES: maximum of rows * heads in a tile; 1, 2, 3 or a multiple of 4
PUMICE_CONSTANT(kAttendKeys, 5);      // KEYS: keys per step; 32, 64 or 128
PUMICE_CONSTANT(kAttendBias, 6);      // 0 or 1
PUMICE_CONSTANT(kAttendSlopes, 7);    // 0 or 1
PUMICE_CONSTANT(kAttendSinks, 8);     // 0 or 1
// Says which terms of relative positions the scores have: kAttendByQuery, kAttendByKey, the sum of both, or 0 without `places`. If it is
// not 0, all rows of by_query and by_key are bound.
PUMICE_CONSTANT(kAttendPlaces, 9);
PUMICE_CONSTANT(kAttendByQuery, 1);
PUMICE_CONSTANT(kAttendByKey, 2);

// merge.comp combines the parts of each query's result. groups = rows * heads. Bindings: 0 partials, 1 out.
struct MergeParams {
  uint first_group, groups;
  uint heads, value_dim;
  uint parts, states_at;  // AttendParams::parts and AttendParams::states_at
  uint out_at, out_stride;
};

// ---------------------------------------------------------------- Conv and Scan: conv.comp, scan_gates.comp, scan.comp
// A span is a run of rows of one segment. A dispatch handles a block of rows, and with it one span of each segment that has rows in the
// block. A span table in meta has kSpanWords words per span:
//   0: the span's first row, counted from the first row of the block
//   1: number of rows
//   2, 3: number of rows of the segment before the span, and after the span
//   4: number of the state that the span reads, or kNoState. It reads none if the segment has enough rows before the span.
//   5: index in meta at which the span's list of saves begins
//   6: number of saves. A save is {rows, state}: after the first `rows` rows of the segment, the state is saved under the number `state`.
//      Saves are in ascending order.

// The states of an operation lie in slabs. A slab has states [first, first + count), and a state takes state_words words. A dispatch binds
// one slab to read from (from_first, from_count) and one slab to write to (to_first, to_count). There is a dispatch for each pair of slabs,
// and it computes a span if both conditions are met:
//   The slab to read from has the state that the span reads, or the span reads no state and from_first is 0.
//   The slab to write to has a state that the span saves, or the span saves no state and to_first is 0.
// So each span is computed at least once, and again, with equal results, only if its saves lie in several slabs.
PUMICE_CONSTANT(kSpanWords, 7);
PUMICE_CONSTANT(kNoState, 0xffffffff);

// conv.comp computes out[t][c] = activation(bias[c] + sum over j of taps[j][c] * in[t - (TAPS - 1) + lead + j][c]).
// The state after row t has the rows in[t - (TAPS - 2)], ..., in[t], one after another.
// A group handles one span and LANES columns: groups = spans * blocks, blocks = ceil(width / LANES).
// The bound rows of `out` begin with the first row of the block of rows that the dispatch handles. The bound rows of `in` begin `halo` rows
// earlier.
// Bindings: 0 in, 1 out, 2 vectors (taps, bias), 3 meta, 4 states to read, 5 states to write.
struct ConvParams {
  uint first_group, groups;
  uint spans_at, blocks, width;
  uint lead, halo;  // lead: 0, or (TAPS - 1) / 2 if the convolution is centred
  uint in_at, in_stride, out_at, out_stride;
  uint taps_at, bias_at, has_bias;
  uint activation;  // a pumice::Activation other than xielu, as its number
  uint from_first, from_count, to_first, to_count, state_words;
};
PUMICE_CONSTANT(kConvTaps, 1);  // TAPS, 1 to 64

// scan_gates.comp computes factors of the recurrence Scan (core/ops.h). It writes kGateWords words for each row and head to `work`: {decay,
// gain, skip}. decay = exp(rate * dt). gain = dt with the rule ssd, and strength * sigmoid(beta) with the rule delta.
// groups = ceil(rows * heads / LANES). Bindings: 0 step, 1 beta, 2 vectors (step_bias, rate, skip), 3 work.
struct ScanGatesParams {
  uint first_group, groups;
  uint rows, heads;
  uint step_at, step_stride, beta_at, beta_stride;
  uint step_bias_at, rate_at, skip_at, has_step_bias, has_skip;
  float floor, strength;
};
PUMICE_CONSTANT(kScanGatesRule, 1);  // kScanSsd or kScanDelta
PUMICE_CONSTANT(kGateWords, 3);

// scan.comp computes the recurrence Scan (core/ops.h), row by row. A group handles one span, one head and COLS columns of the head's
// matrix:
//   groups = spans * heads * blocks, blocks = ceil(value_dim / COLS)
// A segment whose rows lie in several blocks of rows has one span in each block. At the end of a block, the matrices of the last segment's
// heads are written to carry_out_at of `work`. The next block reads them from there (its carry_in_at), if the segment continues.
// Bindings: 0 q, 1 k, 2 v, 3 work (the output of scan_gates.comp for the block's rows, and the matrices at carry_in_at and carry_out_at),
// 4 out, 5 meta, 6 states to read, 7 states to write.
struct ScanParams {
  uint first_group, groups;
  uint spans_at, heads, key_heads, tiled, value_dim, blocks;  // tiled: 0 or 1
  uint q_at, q_stride, k_at, k_stride, v_at, v_stride, out_at, out_stride;
  uint carry_in_at, carry_out_at;
  uint from_first, from_count, to_first, to_count, state_words;
};
PUMICE_CONSTANT(kScanRule, 1);    // kScanSsd or kScanDelta
PUMICE_CONSTANT(kScanKeyDim, 2);  // KEY_DIM, 1 to 1024
PUMICE_CONSTANT(kScanCols, 3);    // COLS: columns of the matrix per group, scan_cols(KEY_DIM); divides LANES
// Values of kScanRule. number() in vulkan/numbers.h converts a ScanRule to one of them.
PUMICE_CONSTANT(kScanSsd, 0);
PUMICE_CONSTANT(kScanDelta, 1);
PUMICE_CONSTANT(kScanLanes, 64);

// ---------------------------------------------------------------- Select: select.comp
// Copies rows: out[r] = in[meta[rows_at + r]]. Only rows [chunk_first, chunk_first + chunk_rows) of `in` are bound. out[r] is not changed
// if its source is outside of this range.
// groups = rows * blocks, blocks = ceil(width / (LANES * kSelectPerLane)). Bindings: 0 in, 1 out, 2 meta.
struct SelectParams {
  uint first_group, groups;
  uint blocks, width;
  uint in_at, in_stride, out_at, out_stride;
  uint rows_at, chunk_first, chunk_rows;
};
PUMICE_CONSTANT(kSelectPerLane, 4);

// ---------------------------------------------------------------- Pool: pool.comp
// Pools the rows of segment s (an entry of the segment table at segments_at) into row s of `out`.
// If one bound range cannot hold all rows of `in`, there is one dispatch for each chunk of rows, [chunk_first, chunk_first + chunk_rows).
// A dispatch changes out[s] only if segment s has rows in its chunk. If a segment has rows in several chunks, out[s] is an intermediate
// result until the last of them. Therefore the chunks must be dispatched in order, with a barrier between two dispatches.
// groups = segments * blocks, blocks = ceil(width / kPoolColumns). Bindings: 0 in, 1 out, 2 meta.
struct PoolParams {
  uint first_group, groups;
  uint blocks, width;
  uint in_at, in_stride, out_at, out_stride;
  uint segments_at;
  uint chunk_first, chunk_rows;
};
PUMICE_CONSTANT(kPoolKind, 1);  // one of the values below, kPoolMean to kPoolWeightedMean
PUMICE_CONSTANT(kPoolColumns, 16);
// Values of kPoolKind. number() in vulkan/numbers.h converts a PoolKind to one of them.
PUMICE_CONSTANT(kPoolMean, 0);
PUMICE_CONSTANT(kPoolCls, 1);
PUMICE_CONSTANT(kPoolLast, 2);
PUMICE_CONSTANT(kPoolMax, 3);
PUMICE_CONSTANT(kPoolMeanSqrtLen, 4);
PUMICE_CONSTANT(kPoolWeightedMean, 5);

// ---------------------------------------------------------------- LogProb: log_prob.comp
// Computes out[r] = log softmax(logits[r])[id] with id = meta[ids_at + r]. The result is NaN if the id is not below `width`. There is one
// group for each row. Bindings: 0 logits, 1 out, 2 meta.
struct LogProbParams {
  uint first_group, groups;
  uint width;
  uint in_at, in_stride, out_at, out_stride;
  uint ids_at;
};

// ---------------------------------------------------------------- sampling: top.comp
// Finds what a sampler needs of each row of logits: the k largest logits, the maximum and the sum of exponentials, whether a logit is not
// finite, and the logits of the row's reported ids. The reported ids are those with penalties or biases. The host ranks them itself, so
// they are not among the k largest.
// There are two dispatches with a barrier between them. STAGE 0 ranks each block of kTopBlock logits, and writes kTopHead + 2 k words per
// block to `found`: groups = rows * blocks, blocks = ceil(width / kTopBlock). STAGE 1 combines the blocks of each row: groups = rows.
// Bindings: 0 logits, 1 meta, 2 found, 3 out. LANES is 32 to 256; 128 is a good number.

// The row table in meta has kTopRowWords words per row:
//   0: index in meta of the row's reported ids, which are in ascending order, without repeats, and below `width`
//   1: number of reported ids
//   2: index in `out` of the row's results
//   3: index in meta of the row's mask of allowed ids, which has one bit per id; 0 if all ids are allowed

// The results of a row take kTopHead + 2 k + reported words. c is the smaller of k and the number of ids that are allowed and not reported.
//   kTopHead words: {number of logits that are not finite, id of the first of them (0xffffffff if there is none), bits of this logit, c,
//     float maximum of the row, float sum of exp(logit - maximum), 0, 0}; maximum and sum are meaningless if a logit is not finite
//   float[k]: the c largest logits in descending order, equal logits by ascending id, then -3.4e38
//   uint[k]: the ids of these logits, then 0xffffffff
//   float[reported]: the logits of the reported ids, in the order of the ids
struct TopParams {
  uint first_group, groups;
  uint blocks, width;
  uint logits_at, logits_stride;
  uint rows_at;   // index of the row table in meta
  uint found_at;  // index in `found` of the words for row 0, block 0
};
PUMICE_CONSTANT(kTopStage, 1);  // 0 or 1
PUMICE_CONSTANT(kTopK, 2);      // k, 1 to 128
PUMICE_CONSTANT(kTopBlock, 4096);
PUMICE_CONSTANT(kTopHead, 8);
PUMICE_CONSTANT(kTopRowWords, 4);

#ifdef __cplusplus
// Returns LANES of norm.comp for heads of `width` columns: the smallest power of two from 32 on with which a lane handles at most 8 values.
// The number is at most 256, and at most `limit`, the device's maximum (128 or more).
constexpr std::uint32_t norm_lanes(std::uint32_t width, std::uint32_t limit) {
  std::uint32_t lanes = 32;
  while (lanes < 256 && 2 * lanes <= limit && lanes * 8 < width) lanes *= 2;
  return lanes;
}
// Returns the number of values that a lane of norm.comp loads at once. It is a power of two from 1 to 16, so that few pipelines are needed.
constexpr std::uint32_t norm_batch(std::uint32_t width, std::uint32_t lanes) {
  std::uint32_t batch = 1;
  while (batch < 16 && batch * lanes < width) batch *= 2;
  return batch;
}

// Returns SPAN of store.comp, the number of lanes per head, for heads of up to `dim` numbers and groups of `lanes` lanes. A lane handles 4
// numbers at a time.
constexpr std::uint32_t store_span(std::uint32_t dim, std::uint32_t lanes) {
  std::uint32_t span = 2;
  while (span < lanes && span < 32 && span * 4 < dim) span *= 2;
  return span;
}

// attend_tile() returns the size of the tiles of attend.comp for segments of up to `rows` rows (1 when decoding). `dim` is the larger of
// KEY_DIM and VALUE_DIM. A lane holds 4 queries x 8 columns of values, so a tile has at most 4 * (kAttendLanes / (padded_dim / 8)) queries,
// for example 16 for 128 dimensions and 4 for 512, and never more than 32 queries. If keys have more than 512 dimensions, a tile has 4
// queries.
struct AttendTile {
  std::uint32_t heads, head_blocks;  // tile_heads and head_blocks of AttendParams
  std::uint32_t rows;                // maximum number of rows in a tile
  std::uint32_t queries, keys;       // values of the specialisation constants QUERIES and KEYS
  bool operator==(const AttendTile&) const = default;
};
constexpr AttendTile attend_tile(std::uint32_t dim, std::uint32_t heads_per_kv, std::uint32_t rows) {
  const std::uint32_t fit = kAttendLanes / (padded_dim(dim) / 8), most = 4 * (fit < 1 ? 1 : fit < 8 ? fit : 8);
  AttendTile tile{};
  tile.head_blocks = (heads_per_kv + most - 1) / most;
  tile.heads = (heads_per_kv + tile.head_blocks - 1) / tile.head_blocks;
  tile.rows = most / tile.heads < rows ? most / tile.heads : rows;
  const std::uint32_t queries = tile.rows * tile.heads;
  tile.queries = queries < 4 ? queries : (queries + 3) / 4 * 4;
  tile.keys = 128;
  while (tile.keys > 32 && (tile.keys / 4 * ((tile.queries + 3) / 4) > kAttendLanes || tile.keys * dim > 8192)) tile.keys /= 2;
  return tile;
}
// Returns the number of splits into which attend.comp divides the keys of each tile: as many as are needed to get `wanted` groups.
//   groups: number of groups with one split.
//   keys: maximum number of keys that a tile may have before the dispatch is recorded again. A split gets at least two steps of KEYS keys,
//     because one step takes only as long as the dispatch of merge.comp.
//   wanted: on a GPU about 4 groups per compute unit, or 1,024 if the number of units is unknown; on a software device the number of
//     threads.
//   keys_per_group: maximum number of keys in a split. It limits the time of a group, because a dispatch can only be cut between groups.
//     4,096 keys take about 1 ms on a small GPU, and 256 keys take 5 to 10 ms on one CPU thread.
constexpr std::uint32_t attend_splits(const AttendTile& tile, std::uint64_t groups, std::uint64_t keys, std::uint64_t wanted,
                                      std::uint64_t keys_per_group = 4096) {
  const std::uint64_t most = (keys + 2 * tile.keys - 1) / (2 * tile.keys), least = (keys + keys_per_group - 1) / keys_per_group;
  std::uint64_t splits = groups < wanted ? (wanted + groups - 1) / groups : 1;
  if (splits > 128) splits = 128;
  if (splits < least) splits = least;
  if (splits > most) splits = most;
  return static_cast<std::uint32_t>(splits > 0 ? splits : 1);
}
constexpr std::uint64_t attend_partial_words(std::uint64_t queries, std::uint64_t parts, std::uint32_t value_dim) {
  return queries * parts * (padded_dim(value_dim) + 2);
}
// Returns COLS of scan.comp, the number of columns of a head's matrix that a group holds in registers. It is the largest power of two up to
// 32 with which each of the kScanLanes lanes has at most 32 numbers.
constexpr std::uint32_t scan_cols(std::uint32_t key_dim) {
  std::uint32_t cols = 32;
  while (cols > 2 && key_dim * cols > 32 * kScanLanes) cols /= 2;
  return cols;
}
constexpr std::uint64_t top_found_words(std::uint64_t rows, std::uint64_t blocks, std::uint32_t k) {
  return rows * blocks * (kTopHead + 2 * k);
}
static_assert(sizeof(NormParams) <= 128 && sizeof(MultiplyParams) <= 128 && sizeof(StoreParams) <= 128 && sizeof(AttendParams) <= 128 &&
              sizeof(MergeParams) <= 128 && sizeof(SelectParams) <= 128 && sizeof(PoolParams) <= 128 && sizeof(LogProbParams) <= 128 &&
              sizeof(TopParams) <= 128 && sizeof(ConvParams) <= 128 && sizeof(ScanGatesParams) <= 128 && sizeof(ScanParams) <= 128);
#endif

#ifdef __cplusplus
}  // namespace pumice::vulkan::params
#endif
#undef PUMICE_CONSTANT
#endif
