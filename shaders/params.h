// Push constants and the numbers of specialisation constants, for host and shaders. This file is valid C++ and valid GLSL, so that each
// fact stands in one place. Units: a member `..._at` is an offset in words (4 bytes) from the start of the bound range, and `..._stride` is
// the number of words from one row to the next. All members are 4 bytes wide, so that std430 and C++ agree. A block has at most 128 bytes.
// Every block begins with first_group and groups: a dispatch runs groups [first_group, groups) of a list (see group() in common.glsl).
// Something must be bound even to bindings that a variant of a shader does not read, because the shader uses them statically.
// All vectors of a model (norm weights, biases, slopes, tables of distances) lie in one buffer. A dispatch binds as `vectors` the part of
// this buffer that holds the vectors it needs. An offset says where each of them begins.
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

// Specialisation constant 0 of every shader is the number of invocations per workgroup, a power of two in 32..256.
PUMICE_CONSTANT(kSpecLanes, 0);

// ---------------------------------------------------------------- Linear, GatedLinear: matvec, gemm, matvec_i8, gemm_i8, gemm_coopmat
// out[t][r] = softcap(activation(scale * (sum over k of in[t][k] * W[r][k]) + bias[r])) + residual[t][r],   r in [0, outputs)
// GATED: out[t][r] = activation(in[t] . W[r] + bias[r]) * (in[t] . W2[r] + bias2[r]); scale is 1, no softcap, no residual.
// A dispatch computes the outputs of one bound piece of a matrix (a chunk of its rows, or a part of a stack). out_at, residual_at, bias_at,
// bias2_at and weights_at all point to the first of these outputs.
// Bindings: 0 weights, 1 in (float rows; for the _i8 shaders, rows that quantize.comp wrote), 2 out, 3 vectors (bias, bias2), 4 residual
// (may be the same range as out), 5 weights2.
struct LinearParams {
  uint first_group, groups;  // groups = ceil(tokens / TOKENS) * ceil(outputs / OUTPUTS), with OUTPUTS / 2 when GATED
  uint tokens, outputs, cols;
  uint weights_at, weights2_at;  // rows follow each other without gaps, device_row_words(format, cols) words each; multiples of 4
  uint in_at, in_stride;         // _i8: multiples of 4; in_stride = quantized_row_words(cols)
  uint out_at, out_stride;
  uint bias_at, bias2_at;
  uint residual_at, residual_stride;
  uint activation;                         // pumice::Activation
  uint has_bias, has_bias2, has_residual;  // 0 or 1
  float scale, softcap;                    // softcap 0 means none
  float alpha_p, alpha_n;                  // of xielu
};
// Activation, bias and residual are in the block instead of specialisation constants. That costs no time, and a model needs half as many
// pipelines.
PUMICE_CONSTANT(kLinearFormat, 1);   // Format of the weights, in the order of formats.def
PUMICE_CONSTANT(kLinearFormat2, 2);  // Format of weights2; equal to kLinearFormat when not GATED
PUMICE_CONSTANT(kLinearGated, 3);    // 0 or 1
PUMICE_CONSTANT(kLinearAligned, 4);  // 1 if in_at and in_stride are multiples of 4 (vector loads), else 0
// The tile of a group is TOKENS rows of `in` by OUTPUTS rows of weights. When GATED, half of the rows of weights are of W and half of W2,
// and OUTPUTS is even.
//   matvec, matvec_i8: TOKENS is 1, 2, 4 or 8, and so is OUTPUTS. TOKENS * OUTPUTS <= 32, and TOKENS * OUTPUTS * LANES <= 3072. The lanes
//     share the columns. `tokens` may be any number.
//   gemm, gemm_i8: LANES = TOKENS * OUTPUTS / (8 R), where R, the tokens per lane, is 2, 4 or 8, and 2 LANES <= 3 (TOKENS + OUTPUTS).
//     OUTPUTS is 32, 64 or 128. Shared memory: (TOKENS + OUTPUTS) * 80 bytes for gemm, (TOKENS + OUTPUTS) * 64 for gemm_i8, and 128 for
//     code tables. E.g. LANES 64, TOKENS 64, OUTPUTS 64; LANES 128, TOKENS 128, OUTPUTS 64; for few rows or small matrices LANES 64,
//     TOKENS 32, OUTPUTS 32.
//   gemm_coopmat: LANES / SUBGROUP, the number of subgroups, is 1 or even. One subgroup computes the whole tile alone. More subgroups
//     stand in two columns, and each computes TOKENS / (subgroups / 2) x OUTPUTS / 2, a multiple of M x 2 N. K divides 32. Shared memory:
//     (TOKENS + OUTPUTS) * 80 + 128 bytes, and 4 M N for each subgroup (8 M N when GATED). The pipeline needs full subgroups of SUBGROUP
//     lanes. E.g. M, N, K = 16 and SUBGROUP 32: LANES 128, TOKENS 64, OUTPUTS 64; LANES 256, TOKENS 128, OUTPUTS 128.
PUMICE_CONSTANT(kLinearTokens, 5);
PUMICE_CONSTANT(kLinearOutputs, 6);
PUMICE_CONSTANT(kLinearCoopM, 7);  // gemm_coopmat: shape of one cooperative matrix product, from the device's list (f16 x f16 -> f32)
PUMICE_CONSTANT(kLinearCoopN, 8);
PUMICE_CONSTANT(kLinearCoopK, 9);
PUMICE_CONSTANT(kLinearCoopSubgroup, 10);  // gemm_coopmat: lanes of a subgroup; LANES = a multiple of it

#ifdef __cplusplus
// Returns LinearParams::groups for a tile of TOKENS x OUTPUTS.
constexpr std::int64_t linear_groups(std::int64_t tokens, std::int64_t outputs, std::int64_t tile_tokens, std::int64_t tile_outputs,
                                     bool gated) {
  const std::int64_t width = gated ? tile_outputs / 2 : tile_outputs;
  return (tokens + tile_tokens - 1) / tile_tokens * ((outputs + width - 1) / width);
}
#endif

// ---------------------------------------------------------------- Embed: gather
// out[r] = (ADD ? out[r] : 0) + scale * W[meta[index_at + r]] for r in [0, groups), with one group per row.
// Rows [chunk_first, chunk_first + chunk_rows) of the table are bound. Rows of `out` whose index is outside this range are not changed.
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
// x ~ scale * code: for each row and each 32 columns, scale = max|x| / 127, code = the nearest integer in [-127, 127], ties to even.
// A row of the output: cols / 4 words of codes (bytes in order), cols / 32 float scales, padding to a multiple of 4 words. cols % 32 == 0.
// Bindings: 0 in, 1 out.
struct QuantizeParams {
  uint first_group, groups;  // groups = ceil(tokens * cols / 4 / LANES)
  uint tokens, cols;
  uint in_at, in_stride;
  uint out_at, out_stride;  // out_stride = quantized_row_words(cols)
};
PUMICE_CONSTANT(kQuantizeAligned, 1);  // as kLinearAligned

#ifdef __cplusplus
constexpr std::int64_t quantized_row_words(std::int64_t cols) { return (cols / 4 + cols / 32 + 3) / 4 * 4; }
static_assert(sizeof(LinearParams) <= 128 && sizeof(GatherParams) <= 128 && sizeof(QuantizeParams) <= 128);
#endif

// ---------------------------------------------------------------- what a batch says, in `meta`
// Segment tables have kSegmentWords words per segment: {first row in the batch, rows, past, pages, prompt, unseen}. `pages` is the word of
// meta where the segment's list of page ids begins (as in Segment::pages, id i holds positions [32 i, 32 i + 32)). Encoders have no cache,
// so store.comp copies their keys and values to pages of a scratch store in f32, with past = 0.
PUMICE_CONSTANT(kSegmentWords, 6);
PUMICE_CONSTANT(kPagePositions, 32);  // kPageTokens of core/batch.h
// FORMAT of keys and values: KvFormat (number() in vulkan/numbers.h).
PUMICE_CONSTANT(kKvF16, 0);
PUMICE_CONSTANT(kKvF32, 1);
PUMICE_CONSTANT(kKvQ8, 2);

// A page of K, and one of V, of one layer has kv_heads blocks one after another, then padding to a multiple of 64 words (256 bytes), so
// that a bound range may begin at any page. A key has KEY_DIM numbers and a value has VALUE_DIM, each padded to a multiple of 8
// (padded_dim). A word holds 1 (f32), 2 (f16) or 4 (q8_0) neighbouring numbers of one position; units = padded_dim / numbers per word. A
// block is:
//   K: word[units][32 positions]    V: word[32 positions][units]    q8_0: then float[32], the scale of each position; value = scale * code
// store.comp writes zeros to the padding, so that copy_page() only has to copy whole pages.
#ifdef __cplusplus
constexpr std::uint32_t padded_dim(std::uint32_t dim) { return (dim + 7) / 8 * 8; }
constexpr std::uint32_t kv_units(std::uint32_t format, std::uint32_t dim) {
  return padded_dim(dim) / (format == kKvF32 ? 1 : format == kKvF16 ? 2 : 4);
}
// Returns the words of a page of keys, or of a page of values, whose heads have `dim` numbers.
constexpr std::uint64_t kv_page_words(std::uint32_t format, std::uint32_t dim, std::uint32_t kv_heads) {
  return (std::uint64_t{kv_heads} * kPagePositions * (kv_units(format, dim) + (format == kKvQ8 ? 1 : 0)) + 63) / 64 * 64;
}
#endif

// ---------------------------------------------------------------- Norm: norm.comp
// groups = rows * heads, heads = width / (op.group or width). A group normalises `width` columns of one row.
// Bindings: 0 in, 1 out, 2 add, 3 vectors (weight, bias). in, out and add may be the same range. LANES: norm_lanes(width).
struct NormParams {
  uint first_group, groups;
  uint heads;  // of a row
  uint width;  // of a head: op.group, or the view's width with one head
  uint in_at, in_stride, out_at, out_stride, add_at, add_stride;
  uint weight_at, bias_at;
  float eps;
};
PUMICE_CONSTANT(kNormKind, 1);    // kNormRms, kNormLayer
PUMICE_CONSTANT(kNormWeight, 2);  // 0 or 1
PUMICE_CONSTANT(kNormBias, 3);    // 0 or 1
PUMICE_CONSTANT(kNormAdd, 4);     // 0 or 1
PUMICE_CONSTANT(kNormBatch, 5);   // norm_batch(width, LANES); the result is right for any number from 1 on
PUMICE_CONSTANT(kNormRms, 0);     // NormKind (number() in vulkan/numbers.h)
PUMICE_CONSTANT(kNormLayer, 1);

// ---------------------------------------------------------------- Multiply: multiply.comp
// out[r][c] = scale * a[r][c] * activation(b[r][c / span]), where span is the number of columns of a per column of b. If span is 0, there
// is no b, and out[r][c] = scale * a[r][c]. a and out may be the same range.
// groups = rows * blocks, blocks = ceil(width / (LANES * kMultiplyPerLane)). Bindings: 0 a, 1 b, 2 out.
struct MultiplyParams {
  uint first_group, groups;
  uint blocks, width, span;
  uint a_at, a_stride, b_at, b_stride, out_at, out_stride;
  uint activation;  // pumice::Activation, not xielu
  float scale;
};
PUMICE_CONSTANT(kMultiplyPerLane, 4);

// ---------------------------------------------------------------- Rope, Store, and an encoder's keys and values: store.comp
// Rotates the heads of q and k in place (if pairs > 0), and stores the rotated k and v in those of their pages that are bound. If q_factors
// is 1, q is multiplied by the factor of its row. A dispatch may do parts of this: a Rope alone is q with kv_heads = 0, and a Store alone
// has q_heads = 0 and pairs = 0.
// A unit is one head of one row of q, k or v. A group handles LANES / SPAN units:
//   groups = ceil(rows * (q_heads + kv_heads + (page_count > 0 ? kv_heads : 0)) / (LANES / SPAN))
// If the pages lie in several bound ranges, the first dispatch rotates, and stores to its range. The other dispatches have q_heads = 0 and
// pairs = 0, because k is rotated by then, and need a barrier after the first. If page_count = 0, nothing is stored.
// Bindings: 0 q, 1 k, 2 v (may be the same range), 3 pages of K, 4 pages of V, 5 meta.
struct StoreParams {
  uint first_group, groups;
  uint rows, q_heads, kv_heads;
  uint pairs, interleaved;  // pairs = inv_freq.size() of the table; interleaved 0 or 1
  uint q_at, q_stride, k_at, k_stride, v_at, v_stride;
  uint cells_at;               // meta: for each row, page id * 32 + position % 32
  uint turns_at;               // meta: for each row, float cos[pairs], sin[pairs], both multiplied by `magnitude`
  uint factors_at, q_factors;  // meta: a float for each row; q_factors is 0 or 1
  uint page_first, page_count;
  uint k_page_words, v_page_words;
};
PUMICE_CONSTANT(kStoreFormat, 1);    // kKvF16 ..
PUMICE_CONSTANT(kStoreKeyDim, 2);    // 1..512: of the heads of q and k
PUMICE_CONSTANT(kStoreValueDim, 3);  // 1..512: of the heads of v
PUMICE_CONSTANT(kStoreSpan, 4);      // lanes of a unit: store_span(larger of the two, LANES)

// ---------------------------------------------------------------- Attend: attend.comp, merge.comp
// For each row, at position s = past + i of its segment, and each head, computes the softmax over the keys
//   [max(0, s - behind), min(past + rows - 1, s + ahead)].
//   causal: behind = window > 0 ? window - 1 : kNoWindow, ahead = 0.   not causal: behind = ahead = window > 0 ? window : kNoWindow.
// The score of the key at position j is scale * q.k, then soft-capped, + bias[head][clamp(j - s, -reach, reach) + reach] (with 2 reach + 1
// values per head), - slopes[head] * |j - s|. With places (relative positions), p = places[clamp(j - s, -reach, reach) + reach], and
// by_query[row of the query][head * by_head + p] and by_key[row of the key][head * by_head + p] are added to q.k; then there is no bias and
// no slopes, and `past` is 0.
// With sinks the softmax has one more score, sinks[head], whose weight goes to no value. Part 0 begins with this score.
// Scores that depend on distances use kDistanceWords words of meta: {reach, by_query_at, by_key_at, by_stride, by_head}. by_query_at and
// by_key_at are offsets in the bound rows of by_query and by_key, which lie in one slot. by_head is how many numbers a head has in such a
// row.
// This is FlashAttention (Dao et al. 2022), with the queries of several heads of one kv head side by side (grouped queries), and with the
// keys split between groups (Flash-Decoding).
// The tile table in meta has kTileWords words per tile: {segment (in the segment table at segments_at), first row within the segment, rows,
// 0}. rows * tile_heads <= QUERIES. Tiles with many keys should come first. The tiles of one segment need not be together.
//   groups = tiles * kv_heads * head_blocks * splits, head_blocks = ceil(heads_per_kv / tile_heads)
// A group computes one tile for tile_heads heads of one kv head, over one of `splits` even parts of the keys that its tile sees. The shader
// computes these parts from the segment table, so that nothing in the push constants and the grid depends on `past`. Keys on pages that are
// not bound are left out.
// If parts == 1, the result is written to `out`.
// If parts > 1 (because of splits, or pages in several bound ranges: parts = ranges * splits, part_first = range * splits), each group
// writes part number part_first + split of the results of its queries to `partials`, and merge.comp combines the parts.
//   Query n = (row - first_row) * heads + head, where heads = kv_heads * heads_per_kv. Part p of its result has
//   the accumulator at (n * parts + p) * padded_dim(VALUE_DIM), and {maximum, sum} at states_at + (n * parts + p) * 2.
//   states_at >= queries * parts * padded_dim(VALUE_DIM), and the range holds attend_partial_words(). A part that sees no key and has no
//   sink has sum 0.
// Bindings: 0 q, 1 pages of K, 2 pages of V, 3 meta, 4 out if parts == 1, else partials, 5 vectors (bias, slopes, sinks, places), 6
// by_query and by_key.
// QUERIES, KEYS, tile_heads, rows of a tile: attend_tile(). LANES = kAttendLanes. Shared memory <= 14 KiB.
struct AttendParams {
  uint first_group, groups;
  uint tiles, kv_heads, heads_per_kv, tile_heads, head_blocks, splits;
  uint part_first, parts, states_at;
  uint tiles_at, segments_at;
  uint first_row;  // row of the batch at which q, out and partials are bound
  uint page_first, page_count;
  uint k_page_words, v_page_words;
  uint behind, ahead;
  uint q_at, q_stride, out_at, out_stride;
  float scale, softcap;  // softcap 0: none
  uint bias_at, slopes_at, sinks_at, places_at;
  uint distances_at;  // meta: kDistanceWords words; not used without bias and places
};
PUMICE_CONSTANT(kTileWords, 4);
PUMICE_CONSTANT(kDistanceWords, 5);
PUMICE_CONSTANT(kNoWindow, 0x7fffffff);
PUMICE_CONSTANT(kAttendLanes, 64);
PUMICE_CONSTANT(kAttendFormat, 1);    // kKvF16 ..
PUMICE_CONSTANT(kAttendKeyDim, 2);    // 1..512: of the heads of q and K
PUMICE_CONSTANT(kAttendValueDim, 3);  // 1..512: of the heads of V and out
PUMICE_CONSTANT(kAttendQueries, 4);   // rows * heads of a tile: 1, 2, 3 or a multiple of 4
PUMICE_CONSTANT(kAttendKeys, 5);      // keys per step: 32, 64 or 128
PUMICE_CONSTANT(kAttendBias, 6);      // 0 or 1
PUMICE_CONSTANT(kAttendSlopes, 7);    // 0 or 1
PUMICE_CONSTANT(kAttendSinks, 8);     // 0 or 1
PUMICE_CONSTANT(kAttendPlaces, 9);    // sum of the used ones of these two; if not 0, binding 6 has all rows of their slot
PUMICE_CONSTANT(kAttendByQuery, 1);
PUMICE_CONSTANT(kAttendByKey, 2);

// groups = rows * heads. Bindings: 0 partials, 1 out.
struct MergeParams {
  uint first_group, groups;
  uint heads, value_dim;
  uint parts, states_at;  // as AttendParams
  uint out_at, out_stride;
};

// ---------------------------------------------------------------- Select: select.comp
// out[r] = in[meta[rows_at + r]]. Rows [chunk_first, chunk_first + chunk_rows) of `in` are bound. Rows of `out` whose source is outside
// this range are not changed. groups = rows * blocks, blocks = ceil(width / (LANES * kSelectPerLane)). Bindings: 0 in, 1 out, 2 meta.
struct SelectParams {
  uint first_group, groups;
  uint blocks, width;
  uint in_at, in_stride, out_at, out_stride;
  uint rows_at, chunk_first, chunk_rows;
};
PUMICE_CONSTANT(kSelectPerLane, 4);

// ---------------------------------------------------------------- Pool: pool.comp
// out[s] = pooled rows of segment s of the table at segments_at (row 0 of `out` is for the table's first segment). Rows [chunk_first,
// chunk_first + chunk_rows) of `in` are bound. If a segment has rows in several chunks, the first of these chunks begins its result in
// `out`, and the last one completes it, so chunks go in order, with a barrier between. Segments without rows in this chunk are left alone.
// groups = segments * blocks, blocks = ceil(width / kPoolColumns). Bindings: 0 in, 1 out, 2 meta.
struct PoolParams {
  uint first_group, groups;
  uint blocks, width;
  uint in_at, in_stride, out_at, out_stride;
  uint segments_at;
  uint chunk_first, chunk_rows;
};
PUMICE_CONSTANT(kPoolKind, 1);  // kPoolMean ..
PUMICE_CONSTANT(kPoolColumns, 16);
PUMICE_CONSTANT(kPoolMean, 0);  // PoolKind (number() in vulkan/numbers.h)
PUMICE_CONSTANT(kPoolCls, 1);
PUMICE_CONSTANT(kPoolLast, 2);
PUMICE_CONSTANT(kPoolMax, 3);
PUMICE_CONSTANT(kPoolMeanSqrtLen, 4);
PUMICE_CONSTANT(kPoolWeightedMean, 5);

// ---------------------------------------------------------------- LogProb: log_prob.comp
// out[r] = log softmax(logits[r])[meta[ids_at + r]], or NaN if the id is not below width. One group per row. Bindings: 0 logits, 1 out, 2
// meta.
struct LogProbParams {
  uint first_group, groups;
  uint width;
  uint in_at, in_stride, out_at, out_stride;
  uint ids_at;
};

// ---------------------------------------------------------------- sampling: top.comp
// For each row of logits, finds whether all are finite, log-sum-exp, the k largest, and the raw logits of `reported` ids. Reported ids are
// left out of the ranking, because the host ranks penalised and biased ids itself.
// There are two dispatches with a barrier between them. STAGE 0 ranks blocks of kTopBlock logits (groups = rows * blocks, blocks =
// ceil(width / kTopBlock)), and writes kTopHead + 2 k words for each (row, block) to `found` (top_found_words()). STAGE 1 combines a row's
// blocks (groups = rows).
// The row table in meta has kTopRowWords words per row: {word of meta where the row's reported ids begin, number of reported ids, word of
// `out` where the row's results begin, word of meta where the mask of the row's allowed ids begins, one bit per id (0 if all ids are
// allowed)}. Reported ids ascend, without repeats, and are below width. The host allots kTopHead + 2 k + reported words for the results of
// a row:
//   kTopHead words: {number of logits that are not finite, id of the first of them (0xffffffff if none), bits of its logit, candidates c,
//     float maximum and float sum of exp(logit - maximum), both over the whole row (void if a logit is not finite), 0, 0};
//     c = min(k, number of ids that are allowed and not reported)
//   float[k]: the largest logits, descending, equal ones by ascending id; uint[k]: their ids; from c on: -3.4e38 and 0xffffffff
//   float[reported]: logits of the reported ids in the order of their list
// Bindings: 0 logits, 1 meta, 2 found, 3 out. LANES 32..256; 128 suits.
struct TopParams {
  uint first_group, groups;
  uint blocks, width;
  uint logits_at, logits_stride;
  uint rows_at;   // meta: row table
  uint found_at;  // word of `found` for (row 0, block 0)
};
PUMICE_CONSTANT(kTopStage, 1);  // 0 or 1
PUMICE_CONSTANT(kTopK, 2);      // k: 1..128
PUMICE_CONSTANT(kTopBlock, 4096);
PUMICE_CONSTANT(kTopHead, 8);
PUMICE_CONSTANT(kTopRowWords, 4);

#ifdef __cplusplus
// Returns the lanes for a row of `width` columns: about 8 values per lane, at least 32 lanes, at most 256 and the device's limit (>= 128).
constexpr std::uint32_t norm_lanes(std::uint32_t width, std::uint32_t limit) {
  std::uint32_t lanes = 32;
  while (lanes < 256 && 2 * lanes <= limit && lanes * 8 < width) lanes *= 2;
  return lanes;
}
// Returns how many values a lane loads at once, 1 to 16. Only powers of two, so that there are few pipelines.
constexpr std::uint32_t norm_batch(std::uint32_t width, std::uint32_t lanes) {
  std::uint32_t batch = 1;
  while (batch < 16 && batch * lanes < width) batch *= 2;
  return batch;
}

// Returns the lanes of a unit. A lane handles 4 values at a time, so that 8 lanes load 128 neighbouring bytes.
constexpr std::uint32_t store_span(std::uint32_t dim, std::uint32_t lanes) {
  std::uint32_t span = 2;
  while (span < lanes && span < 32 && span * 4 < dim) span *= 2;
  return span;
}

// The tile of attend.comp for segments of up to `rows` rows (1 when decoding) and `heads_per_kv` query heads per kv head. `dim` is the
// larger of the two dimensions. A lane holds 4 queries x 8 columns, so a tile has at most 4 * (kAttendLanes / (padded_dim / 8)) queries,
// and never more than 32. That is 4 queries for 512 dimensions and 16 for 128.
struct AttendTile {
  std::uint32_t heads, head_blocks;  // tile_heads and head_blocks of AttendParams
  std::uint32_t rows;                // maximum rows of a tile
  std::uint32_t queries, keys;       // QUERIES, KEYS
};
constexpr AttendTile attend_tile(std::uint32_t dim, std::uint32_t heads_per_kv, std::uint32_t rows) {
  const std::uint32_t fit = kAttendLanes / (padded_dim(dim) / 8), most = 4 * (fit < 8 ? fit : 8);
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
// Returns into how many splits the keys are divided. Splits multiply `groups`, the number of groups without splits, until there are
// `wanted` groups: about 4 per compute unit, 1,024 if the number of units is unknown, the number of threads on a software device. No split
// has more than `keys_per_group` keys, because a dispatch can only be cut between groups: 4,096 keys take about 1 ms on a small GPU, 256
// take 5 to 10 ms on one CPU thread. Each split has at least two steps, because one step takes about as long as merge.comp's dispatch.
// `keys` is the maximum that a tile will see before the dispatch is recorded anew.
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
constexpr std::uint64_t top_found_words(std::uint64_t rows, std::uint64_t blocks, std::uint32_t k) {
  return rows * blocks * (kTopHead + 2 * k);
}
static_assert(sizeof(NormParams) <= 128 && sizeof(MultiplyParams) <= 128 && sizeof(StoreParams) <= 128 && sizeof(AttendParams) <= 128 &&
              sizeof(MergeParams) <= 128 && sizeof(SelectParams) <= 128 && sizeof(PoolParams) <= 128 && sizeof(LogProbParams) <= 128 &&
              sizeof(TopParams) <= 128);
#endif

#ifdef __cplusplus
}  // namespace pumice::vulkan::params
#endif
#undef PUMICE_CONSTANT
#endif
