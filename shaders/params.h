// Push constants and numbers of specialisation constants, for host and shaders. This file is valid C++ and valid GLSL, so that each
// fact stands in one place. Units: `_at` is an offset in words (4 bytes) from the start of the bound range, `_stride` the words between
// rows. All members are 4 bytes wide, so std430 and C++ agree; a block is at most 128 bytes.
// Every block begins with first_group and groups: a dispatch runs groups [first_group, groups) of a list (see group() in common.glsl).
// Bindings that a variant does not read must still be bound (to anything): they are used statically.
// All vectors of a model (norm weights, biases, slopes, tables of distances) lie in one buffer. A dispatch binds the part of it that holds
// its own ones as `vectors`, and an offset says where each begins.
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

// Specialisation constant 0 of every shader: invocations of a workgroup, a power of two in 32..256.
PUMICE_CONSTANT(kSpecLanes, 0);

// ---------------------------------------------------------------- Linear, GatedLinear: matvec, gemm, matvec_i8, gemm_i8, gemm_coopmat
// out[t][r] = softcap(activation(scale * (sum over k of in[t][k] * W[r][k]) + bias[r])) + residual[t][r],   r in [0, outputs)
// GATED: out[t][r] = activation(in[t] . W[r] + bias[r]) * (in[t] . W2[r] + bias2[r]); scale is 1, no softcap, no residual.
// A dispatch covers the outputs of one bound piece of a matrix (row chunk, part of a stack): out_at, residual_at, bias_at, bias2_at and
// weights_at all point to its first output.
// Bindings: 0 weights, 1 in (float rows; the _i8 shaders: rows that quantize.comp wrote), 2 out, 3 vectors (bias, bias2), 4 residual (may
// be the same range as out), 5 weights2.
struct LinearParams {
  uint first_group, groups;  // groups = ceil(tokens / TOKENS) * ceil(outputs / OUTPUTS), half the OUTPUTS when GATED
  uint tokens, outputs, cols;
  uint weights_at, weights2_at;  // rows follow each other without gaps, device_row_words(format, cols) words each; multiples of 4
  uint in_at, in_stride;         // _i8: multiples of 4; in_stride = quantized_row_words(cols)
  uint out_at, out_stride;
  uint bias_at, bias2_at;
  uint residual_at, residual_stride;
  uint activation;                         // pumice::Activation
  uint has_bias, has_bias2, has_residual;  // 0 or 1
  float scale, softcap;                    // softcap 0: none
  float alpha_p, alpha_n;                  // of xielu
};
// Activation, bias and residual are in the block and not specialisation constants: that costs no time, and a model needs half as many
// pipelines.
PUMICE_CONSTANT(kLinearFormat, 1);   // Format of the weights, in the order of formats.def
PUMICE_CONSTANT(kLinearFormat2, 2);  // Format of weights2; equal to kLinearFormat when not GATED
PUMICE_CONSTANT(kLinearGated, 3);    // 0 or 1
PUMICE_CONSTANT(kLinearAligned, 4);  // 1: in_at and in_stride are multiples of 4 (vector loads); 0: any
// The tile of a group: TOKENS rows of `in` by OUTPUTS rows of weights (GATED: half of them of W, half of W2; OUTPUTS is then even).
//   matvec, matvec_i8: TOKENS 1, 2, 4 or 8; OUTPUTS 1, 2, 4 or 8; TOKENS * OUTPUTS <= 32, times LANES <= 3072. LANES divide the columns.
//     tokens may be any number.
//   gemm, gemm_i8: LANES = TOKENS * OUTPUTS / (8 R) with R = 2, 4 or 8 tokens a lane and 2 LANES <= 3 (TOKENS + OUTPUTS); OUTPUTS 32, 64
//     or 128. Shared memory: gemm (TOKENS + OUTPUTS) * 80 bytes, gemm_i8 (TOKENS + OUTPUTS) * 64, and 128 for code tables. E.g. LANES 64,
//     TOKENS 64, OUTPUTS 64; LANES 128, TOKENS 128, OUTPUTS 64; for few rows or small matrices LANES 64, TOKENS 32, OUTPUTS 32.
//   gemm_coopmat: LANES / SUBGROUP is 1 or even; with one subgroup the tile is its own, else subgroups share it two abreast: each has
//     TOKENS / (subgroups / 2) x OUTPUTS / 2, a multiple of M x 2 N. K divides 32. Shared memory: (TOKENS + OUTPUTS) * 80 + 128 bytes, and
//     4 M N for each subgroup (8 M N when GATED). The pipeline needs full subgroups of SUBGROUP lanes. E.g. M, N, K = 16 and SUBGROUP 32:
//     LANES 128, TOKENS 64, OUTPUTS 64; LANES 256, TOKENS 128, OUTPUTS 128.
PUMICE_CONSTANT(kLinearTokens, 5);
PUMICE_CONSTANT(kLinearOutputs, 6);
PUMICE_CONSTANT(kLinearCoopM, 7);  // gemm_coopmat: shape of one cooperative matrix product, from the device's list (f16 x f16 -> f32)
PUMICE_CONSTANT(kLinearCoopN, 8);
PUMICE_CONSTANT(kLinearCoopK, 9);
PUMICE_CONSTANT(kLinearCoopSubgroup, 10);  // gemm_coopmat: lanes of a subgroup; LANES = a multiple of it

#ifdef __cplusplus
// LinearParams::groups for a tile of TOKENS x OUTPUTS.
constexpr std::int64_t linear_groups(std::int64_t tokens, std::int64_t outputs, std::int64_t tile_tokens, std::int64_t tile_outputs,
                                     bool gated) {
  const std::int64_t width = gated ? tile_outputs / 2 : tile_outputs;
  return (tokens + tile_tokens - 1) / tile_tokens * ((outputs + width - 1) / width);
}
#endif

// ---------------------------------------------------------------- Embed: gather
// out[r] = (ADD ? out[r] : 0) + scale * W[meta[index_at + r]] for r in [0, groups): one group a row.
// Bound are rows [chunk_first, chunk_first + chunk_rows) of the table; rows whose index is elsewhere are left alone.
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
// Segment tables: kSegmentWords words a segment: {first row in the batch, rows, past, pages, prompt, unseen}; `pages` is the word of meta
// where the segment's list of page ids begins (as Segment::pages: id i holds positions [32 i, 32 i + 32)). Encoders have no cache:
// store.comp copies their keys and values to pages of a scratch store in f32, past = 0.
PUMICE_CONSTANT(kSegmentWords, 6);
PUMICE_CONSTANT(kPagePositions, 32);  // kPageTokens of core/batch.h
// FORMAT of keys and values: KvFormat (number() in vulkan/numbers.h).
PUMICE_CONSTANT(kKvF16, 0);
PUMICE_CONSTANT(kKvF32, 1);
PUMICE_CONSTANT(kKvQ8, 2);

// A page of K, and one of V, of one layer: kv_heads blocks one after another; then padding to a multiple of 64 words (256 bytes), so that
// a bound range may begin at any page. Keys have KEY_DIM numbers, values VALUE_DIM; either is padded to a multiple of 8 (padded_dim). A
// word has 1 (f32), 2 (f16) or 4 (q8_0) neighbouring numbers of one position, units = padded_dim / numbers in a word. A block is:
//   K: word[units][32 positions]    V: word[32 positions][units]    q8_0: then float[32], the scale of each position; value = scale * code
// store.comp writes zeros to the padding, so that copying whole pages is enough for copy_page.
#ifdef __cplusplus
constexpr std::uint32_t padded_dim(std::uint32_t dim) { return (dim + 7) / 8 * 8; }
constexpr std::uint32_t kv_units(std::uint32_t format, std::uint32_t dim) {
  return padded_dim(dim) / (format == kKvF32 ? 1 : format == kKvF16 ? 2 : 4);
}
// Of a page of keys or of one of values, whose heads have `dim` numbers.
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
PUMICE_CONSTANT(kNormBatch, 5);   // norm_batch(width, LANES); any number from 1 on is right
PUMICE_CONSTANT(kNormRms, 0);     // NormKind (number() in vulkan/numbers.h)
PUMICE_CONSTANT(kNormLayer, 1);

// ---------------------------------------------------------------- Multiply: multiply.comp
// out[r][c] = scale * a[r][c] * activation(b[r][c / span]), span = a's columns for each of b's; 0: no b, scale * a[r][c]. a and out may be
// the same range.
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
// Turns the heads of q and k in place (pairs > 0), and stores k (turned) and v in those of its pages that are bound. With q_factors, q is
// multiplied by its row's factor. All of it, or parts: a Rope alone is q with kv_heads = 0, a Store alone has q_heads = 0 and pairs = 0.
// A unit is one head of one row of q, k or v; LANES / SPAN units a group:
//   groups = ceil(rows * (q_heads + kv_heads + (page_count > 0 ? kv_heads : 0)) / (LANES / SPAN))
// Pages in several bound ranges: the first dispatch turns and stores its own, the others have q_heads = 0 and pairs = 0 (k is turned by
// then: a barrier between them). page_count = 0: nothing is stored.
// Bindings: 0 q, 1 k, 2 v (may be the same range), 3 pages of K, 4 pages of V, 5 meta.
struct StoreParams {
  uint first_group, groups;
  uint rows, q_heads, kv_heads;
  uint pairs, interleaved;  // pairs = inv_freq.size() of the table; interleaved 0 or 1
  uint q_at, q_stride, k_at, k_stride, v_at, v_stride;
  uint cells_at;               // meta: per row, page id * 32 + position % 32
  uint turns_at;               // meta: per row, float cos[pairs], sin[pairs], both times `magnitude`
  uint factors_at, q_factors;  // meta: per row, float; 0 or 1
  uint page_first, page_count;
  uint k_page_words, v_page_words;
};
PUMICE_CONSTANT(kStoreFormat, 1);    // kKvF16 ..
PUMICE_CONSTANT(kStoreKeyDim, 2);    // 1..512: of the heads of q and k
PUMICE_CONSTANT(kStoreValueDim, 3);  // 1..512: of the heads of v
PUMICE_CONSTANT(kStoreSpan, 4);      // lanes of a unit: store_span(larger of the two, LANES)

// ---------------------------------------------------------------- Attend: attend.comp, merge.comp
// For each row, at position s = past + i of its segment, and each head: softmax over keys
//   [max(0, s - behind), min(past + rows - 1, s + ahead)].
//   causal: behind = window > 0 ? window - 1 : kNoWindow, ahead = 0.   not causal: behind = ahead = window > 0 ? window : kNoWindow.
// A score, of the key at position j: scale * q.k, then soft capped, + bias[head][clamp(j - s, -reach, reach) + reach] (2 reach + 1 values a
// head), - slopes[head] * |j - s|. With places, p = places[clamp(j - s, -reach, reach) + reach], and q.k gets
// by_query[row of the query][head * by_head + p] and by_key[row of the key][the same]; then no bias, no slopes, and `past` is 0.
// With sinks the softmax has one score more, sinks[head], whose weight goes to no value: part 0 begins with it.
// What depends on distances has kDistanceWords words in meta: {reach, by_query_at, by_key_at, by_stride, by_head}. by_query_at and
// by_key_at are offsets in the bound rows of by_query and by_key, which are of one slot; by_head is the numbers a head has in a row.
// FlashAttention (Dao et al. 2022), the queries of a kv head's group side by side (grouped queries), split over keys (Flash-Decoding).
// Tile table in meta: kTileWords words a tile: {segment (in the segment table at segments_at), first row within the segment, rows, 0};
// rows * tile_heads <= QUERIES. Put tiles with many keys first. One segment's tiles need not be together.
//   groups = tiles * kv_heads * head_blocks * splits, head_blocks = ceil(heads_per_kv / tile_heads)
// A group takes one tile, tile_heads heads of one kv head, and one of `splits` even parts of the keys that its tile sees, reckoned on the
// device from the segment table: nothing in the push constants and the grid depends on `past`. Keys on pages that are not bound are left
// out.
// parts == 1: the result goes to `out`.
// parts > 1 (splits, or pages in several bound ranges: parts = ranges * splits, part_first = range * splits): each group writes part
// part_first + split of its queries to `partials`, and merge.comp folds them:
//   query n = (row - first_row) * heads + head, heads = kv_heads * heads_per_kv; part p of it:
//   accumulator at (n * parts + p) * padded_dim(VALUE_DIM), {maximum, sum} at states_at + (n * parts + p) * 2.
//   states_at >= queries * parts * padded_dim(VALUE_DIM); the range holds attend_partial_words(). A part that sees no key and has no
//   sink has sum 0.
// Bindings: 0 q, 1 pages of K, 2 pages of V, 3 meta, 4 out where parts == 1, else partials, 5 vectors (bias, slopes, sinks, places), 6
// by_query and by_key.
// QUERIES, KEYS, tile_heads, rows of a tile: attend_tile(). LANES = kAttendLanes. Shared memory <= 14 KiB.
struct AttendParams {
  uint first_group, groups;
  uint tiles, kv_heads, heads_per_kv, tile_heads, head_blocks, splits;
  uint part_first, parts, states_at;
  uint tiles_at, segments_at;
  uint first_row;  // row of the batch that q, out and partials are bound at
  uint page_first, page_count;
  uint k_page_words, v_page_words;
  uint behind, ahead;
  uint q_at, q_stride, out_at, out_stride;
  float scale, softcap;  // softcap 0: none
  uint bias_at, slopes_at, sinks_at, places_at;
  uint distances_at;  // meta: kDistanceWords words; void without bias and places
};
PUMICE_CONSTANT(kTileWords, 4);
PUMICE_CONSTANT(kDistanceWords, 5);
PUMICE_CONSTANT(kNoWindow, 0x7fffffff);
PUMICE_CONSTANT(kAttendLanes, 64);
PUMICE_CONSTANT(kAttendFormat, 1);    // kKvF16 ..
PUMICE_CONSTANT(kAttendKeyDim, 2);    // 1..512: of the heads of q and K
PUMICE_CONSTANT(kAttendValueDim, 3);  // 1..512: of the heads of V and out
PUMICE_CONSTANT(kAttendQueries, 4);   // rows * heads of a tile: 1, 2, 3 or a multiple of 4
PUMICE_CONSTANT(kAttendKeys, 5);      // keys of one step: 32, 64 or 128
PUMICE_CONSTANT(kAttendBias, 6);      // 0 or 1
PUMICE_CONSTANT(kAttendSlopes, 7);    // 0 or 1
PUMICE_CONSTANT(kAttendSinks, 8);     // 0 or 1
PUMICE_CONSTANT(kAttendPlaces, 9);    // sum of kAttendByQuery and kAttendByKey, where given: binding 6 is then all rows of their slot
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
// out[r] = in[meta[rows_at + r]]. Bound are rows [chunk_first, chunk_first + chunk_rows) of `in`; rows of out whose source is elsewhere
// are left alone. groups = rows * blocks, blocks = ceil(width / (LANES * kSelectPerLane)). Bindings: 0 in, 1 out, 2 meta.
struct SelectParams {
  uint first_group, groups;
  uint blocks, width;
  uint in_at, in_stride, out_at, out_stride;
  uint rows_at, chunk_first, chunk_rows;
};
PUMICE_CONSTANT(kSelectPerLane, 4);

// ---------------------------------------------------------------- Pool: pool.comp
// out[s] = pooled rows of segment s of the table at segments_at (row 0 of out is the table's first segment). Bound are rows
// [chunk_first, chunk_first + chunk_rows) of `in`: a segment that has rows in several chunks is begun in out by the first one and ended by
// the last one, so chunks go in order, with a barrier between; one that has none in this chunk is left alone.
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
// out[r] = log softmax(logits[r])[meta[ids_at + r]]; NaN for an id beyond width. One group a row. Bindings: 0 logits, 1 out, 2 meta.
struct LogProbParams {
  uint first_group, groups;
  uint width;
  uint in_at, in_stride, out_at, out_stride;
  uint ids_at;
};

// ---------------------------------------------------------------- sampling: top.comp
// For each row of logits: whether all are finite, log-sum-exp, the k largest, and the raw logits of `reported` ids. Reported ids are left
// out of the ranking, because the host ranks penalised and biased ids itself.
// Two dispatches, a barrier between: STAGE 0 ranks blocks of kTopBlock logits (groups = rows * blocks, blocks = ceil(width / kTopBlock)),
// which writes kTopHead + 2 k words for each (row, block) to `found`: top_found_words(); STAGE 1 folds a row's blocks (groups = rows).
// Row table in meta: kTopRowWords words a row: {word of meta where the row's reported ids begin, their number, word of `out`, word of meta
// where the row's allowed ids begin, a bit each (0: all are allowed)}. Reported
// ids ascend, without repeats, and are below width. A row of out at that word (the host allots kTopHead + 2 k + reported words):
//   kTopHead words: {logits that are not finite, id of the first of them (0xffffffff: none), its bits, candidates c, float maximum,
//     float sum of exp(logit - maximum), both over all of the row (void when a logit is not finite), 0, 0}; c = min(k, ids that
//     are allowed and not reported)
//   float[k]: the largest logits, descending, ties by ascending id; uint[k]: their ids; beyond c: -3.4e38 and 0xffffffff
//   float[reported]: logits of the reported ids in the order of the list
// Bindings: 0 logits, 1 meta, 2 found, 3 out. LANES 32..256; 128 suits.
struct TopParams {
  uint first_group, groups;
  uint blocks, width;
  uint logits_at, logits_stride;
  uint rows_at;   // meta: row table
  uint found_at;  // word of `found` of (row 0, block 0)
};
PUMICE_CONSTANT(kTopStage, 1);  // 0 or 1
PUMICE_CONSTANT(kTopK, 2);      // k: 1..128
PUMICE_CONSTANT(kTopBlock, 4096);
PUMICE_CONSTANT(kTopHead, 8);
PUMICE_CONSTANT(kTopRowWords, 4);

#ifdef __cplusplus
// Lanes for one row of `width` columns: about 8 values each, at least 32 lanes, at most the device's limit (128 at the least).
constexpr std::uint32_t norm_lanes(std::uint32_t width, std::uint32_t limit) {
  std::uint32_t lanes = 32;
  while (lanes < 256 && 2 * lanes <= limit && lanes * 8 < width) lanes *= 2;
  return lanes;
}
// Values that a lane reads at once, 1 to 16: a power of two, so that there are few pipelines.
constexpr std::uint32_t norm_batch(std::uint32_t width, std::uint32_t lanes) {
  std::uint32_t batch = 1;
  while (batch < 16 && batch * lanes < width) batch *= 2;
  return batch;
}

// A lane takes 4 values at a time: 8 lanes read 128 neighbouring bytes.
constexpr std::uint32_t store_span(std::uint32_t dim, std::uint32_t lanes) {
  std::uint32_t span = 2;
  while (span < lanes && span < 32 && span * 4 < dim) span *= 2;
  return span;
}

// The tile of attend.comp for segments of up to `rows` rows (1: decode) and `heads_per_kv` query heads to a kv head; `dim` is the larger of
// the two dimensions. A lane holds 4 queries x 8 columns, so a tile has at most 4 * (kAttendLanes / (padded_dim / 8)) queries: 4 of 512
// dimensions, 16 of 128, at most 32.
struct AttendTile {
  std::uint32_t heads, head_blocks;  // tile_heads and head_blocks of AttendParams
  std::uint32_t rows;                // at most, of a tile
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
// Splits of the keys: enough that `groups` (without splits) become `wanted` (about 4 a compute unit; 1,024 where their number is unknown,
// the number of threads on a software device), that none has more than `keys_per_group` keys (a dispatch can only be cut between groups:
// 4,096 keys are about 1 ms of a small GPU, 256 are 5 to 10 ms of one CPU thread), and that each has two steps at least: one step takes
// about as long as merge.comp's dispatch for it.
// `keys`: the most that a tile will see before the dispatch is recorded anew.
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
