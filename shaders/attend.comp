#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Computes attention for one tile of queries over keys and values in pages. See AttendParams in params.h. A query is one head of one row.
// The heads of a tile share a kv head.
// The algorithm is FlashAttention (Dao et al. 2022) with KEYS keys per step. In each step, the sums of earlier steps are rescaled to the
// new maximum of the scores. A step has three parts, which divide the work among the lanes in different ways:
//   scores   A lane handles 4 keys x QUERIES_PER_LANE queries. SCORE_SLICES lanes share these, and each of them handles every
//            SCORE_SLICES-th group of 4 dimensions.
//   softmax  ROW_LANES lanes share a query's row of scores.
//   values   A lane handles 8 dimensions x QUERIES_PER_LANE queries. VALUE_SLICES lanes share these, and each of them handles every
//            VALUE_SLICES-th group of 4 keys.
// K and V are loaded once per tile, directly from global memory, and neighbouring lanes load neighbouring 16 bytes. Only queries and scores
// are kept in shared memory.
#define PUSH AttendParams
#include "common.glsl"
#include "activations.glsl"
#include "finite.glsl"

layout(constant_id = kAttendFormat) const uint FORMAT = kKvF16;
layout(constant_id = kAttendKeyDim) const uint KEY_DIM = 64;
layout(constant_id = kAttendValueDim) const uint VALUE_DIM = 64;
layout(constant_id = kAttendQueries) const uint QUERIES = 1;
layout(constant_id = kAttendKeys) const uint KEYS = 32;
layout(constant_id = kAttendBias) const uint HAS_BIAS = 0;
layout(constant_id = kAttendSlopes) const uint HAS_SLOPES = 0;
layout(constant_id = kAttendSinks) const uint HAS_SINKS = 0;
layout(constant_id = kAttendPlaces) const uint PLACES = 0;
#include "kv.glsl"

const uint QUERIES_PER_LANE = QUERIES < 4 ? QUERIES : 4;
const uint QUERY_BLOCKS = QUERIES / QUERIES_PER_LANE;
// A quad is 4 neighbouring dimensions of a key, or 4 neighbouring keys. An octet is 8 neighbouring dimensions of a value.
const uint DIM_QUADS = K_DIM / 4, KEY_QUADS = KEYS / 4, DIM_OCTETS = V_DIM / 8;
const uint SCORE_SLICES = LANES / (KEY_QUADS * QUERY_BLOCKS);
const uint VALUE_SLICES = LANES / (DIM_OCTETS * QUERY_BLOCKS);
const uint ROW_LANES = LANES / QUERIES < 16 ? LANES / QUERIES : KEY_QUADS < 16 ? KEY_QUADS : 16;
const uint ROW_QUADS = (KEY_QUADS + ROW_LANES - 1) / ROW_LANES;  // number of quads of keys that a lane handles in the softmax
const uint PAGES = KEYS / kPagePositions;
const uint UNBOUND = 0xffffffffu;

layout(set = 0, binding = 0) readonly buffer Q { float q[]; };
layout(set = 0, binding = 1) readonly buffer KPages { uvec4 k_pages[]; };
layout(set = 0, binding = 1) readonly buffer KScales { vec4 k_scales[]; };
layout(set = 0, binding = 2) readonly buffer VPages4 { uvec4 v_pages4[]; };
layout(set = 0, binding = 2) readonly buffer VPages2 { uvec2 v_pages2[]; };
layout(set = 0, binding = 2) readonly buffer VScales { float v_scales[]; };
layout(set = 0, binding = 3) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 4) writeonly buffer Out { float y[]; };  // `out` if p.parts == 1, else `partials`
layout(set = 0, binding = 5) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 6) readonly buffer ByPlace { float by_place[]; };

// A row of `queries` has one vec4 more than a query needs, so that lanes with different queries use different banks of shared memory. After
// the last step, `queries` is used to add up the value slices: a row then holds a weighted sum of values, and its last vec4 holds the sum
// of the weights.
const uint LAST_QUAD = DIM_QUADS > 2 * DIM_OCTETS ? DIM_QUADS : 2 * DIM_OCTETS;
const uint QUERY_STRIDE = LAST_QUAD + 1, SCORE_STRIDE = KEY_QUADS + 1;
shared vec4 queries[QUERIES * QUERY_STRIDE];
shared vec4 scores[SCORE_SLICES * QUERIES * SCORE_STRIDE];
shared float row_largest[QUERIES * ROW_LANES];
shared float rescale[QUERIES];
// For each page of this step and of the next step, the index of the page among the pages that this dispatch binds, or UNBOUND if the page
// is not bound.
shared uint bound_pages[2 * PAGES];

// These variables describe the tile of this group. The segment is the one that has the tile's rows.
uint list;                        // index in meta of the segment's list of pages
uint first_position, rows;        // position of the tile's first row, and number of rows
uint last_key;                    // position of the last key that any row of the segment may see
uint kv_head, first_head, heads;  // first_head counts within the heads of kv_head; heads is the number of heads in the tile

// Returns the key positions to which the row at `position` attends: x is the first, and y is the position after the last.
uvec2 seen(uint position) {
  const uint first = p.chunk > 0 ? position - position % p.chunk : position > p.behind ? position - p.behind : 0;
  return uvec2(first, min(last_key, position + p.ahead) + 1);
}

// Returns the term that `places` (relative positions) adds to a head's q.k. The key is `distance` positions after the query. `query` and
// `key` are the batch rows of query and key.
float placed(uint query, uint key, uint head, int distance) {
  const int reach = int(meta[p.distances_at]);
  const uint stride = meta[p.distances_at + 3], by_head = meta[p.distances_at + 4];
  const uint at = head * by_head + uint(vectors[p.places_at + uint(clamp(distance, -reach, reach) + reach)]);
  float sum = 0;
  if ((PLACES & kAttendByQuery) != 0) sum += by_place[meta[p.distances_at + 1] + query * stride + at];
  if ((PLACES & kAttendByKey) != 0) sum += by_place[meta[p.distances_at + 2] + key * stride + at];
  return sum;
}

// Returns `score` plus the head's bias for `distance`, minus the head's slope times |distance|. The key is `distance` positions after the
// query.
float biased(float score, uint head, int distance) {
  if (HAS_BIAS != 0) {
    const int reach = int(meta[p.distances_at]);
    score += vectors[p.bias_at + head * (2 * uint(reach) + 1) + uint(clamp(distance, -reach, reach) + reach)];
  }
  if (HAS_SLOPES != 0) score -= vectors[p.slopes_at + head] * float(abs(distance));
  return score;
}

// Returns the index, among the bound pages, of entry `page` in the segment's list of pages, or UNBOUND if this page is not bound. Also
// returns UNBOUND for pages from position `end` on, because the tile attends to none of their keys and the list may have no entry for them.
uint bound_page(uint page, uint end) {
  if (page * kPagePositions >= end) return UNBOUND;
  const uint bound = meta[list + page] - p.page_first;
  return bound < p.page_count ? bound : UNBOUND;
}
// Return the index in k_pages or v_pages, in words, at which kv_head's block of a bound page begins.
uint k_block(uint page) { return page * p.k_page_words + kv_head * K_BLOCK_WORDS; }
uint v_block(uint page) { return page * p.v_page_words + kv_head * V_BLOCK_WORDS; }

// Loads dimensions 4 quad to 4 quad + 3 of the four keys from `position` on. keys[d] gets dimension 4 quad + d of each of the four keys.
void load_keys(uint block, uint quad, uint position, out vec4 keys[4]) {
  const uint at = (block + k_word(position, 4 * quad)) / 4, row = kPagePositions / 4;
  if (FORMAT == kKvF32) {
    [[unroll]] for (uint d = 0; d < 4; ++d) keys[d] = uintBitsToFloat(k_pages[at + d * row]);
  } else if (FORMAT == kKvF16) {
    [[unroll]] for (uint d = 0; d < 4; d += 2) {
      const uvec4 w = k_pages[at + d / 2 * row];
      const vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), e = unpackHalf2x16(w.w);
      keys[d] = vec4(a.x, b.x, c.x, e.x);
      keys[d + 1] = vec4(a.y, b.y, c.y, e.y);
    }
  } else {
    const ivec4 w = ivec4(k_pages[at]);
    [[unroll]] for (uint d = 0; d < 4; ++d) keys[d] = vec4(bitfieldExtract(w, int(8 * d), 8));
  }
}

// Loads dimensions 8 octet to 8 octet + 7 of the value at one position. In q8_0 these are codes, which the caller multiplies by the scale.
void load_values(uint block, uint octet, uint position, out vec4 values[2]) {
  const uint at = block + v_word(position, 8 * octet);
  if (FORMAT == kKvF32) {
    values[0] = uintBitsToFloat(v_pages4[at / 4]);
    values[1] = uintBitsToFloat(v_pages4[at / 4 + 1]);
  } else if (FORMAT == kKvF16) {
    const uvec4 w = v_pages4[at / 4];
    values[0] = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
    values[1] = vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w));
  } else {
    const ivec2 w = ivec2(v_pages2[at / 2]);
    const ivec4 shift = ivec4(24, 16, 8, 0);
    values[0] = vec4((ivec4(w.x) << shift) >> 24);
    values[1] = vec4((ivec4(w.y) << shift) >> 24);
  }
}

void main() {
  if (group() >= p.groups) return;
  uint item = group();
  const uint tile = p.tiles_at + item % p.tiles * kTileWords;
  item /= p.tiles;
  first_head = item % p.head_blocks * p.tile_heads;
  item /= p.head_blocks;
  kv_head = item % p.kv_heads;
  const uint split = item / p.kv_heads;

  const uint segment = p.segments_at + meta[tile] * kSegmentWords, first = meta[tile + 1];
  const uint past = meta[segment + 2];
  rows = meta[tile + 2];
  list = meta[segment + 3];
  first_position = past + first;
  last_key = past + meta[segment + 1] - meta[segment + 5] - 1;
  heads = min(p.tile_heads, p.heads_per_kv - first_head);
  const uint segment_row = meta[segment], row0 = segment_row + first - p.first_row;  // row0: the tile's first row in q, out and partials
  const uint head0 = kv_head * p.heads_per_kv + first_head, all_heads = p.kv_heads * p.heads_per_kv;

  // The tile attends to the keys in positions [begin, end). This group computes steps [first_step, end_step), one split of these keys.
  const uint begin = seen(first_position).x / kPagePositions * kPagePositions, end = seen(first_position + rows - 1).y;
  const uint steps = (end - begin + KEYS - 1) / KEYS, steps_per_split = (steps + p.splits - 1) / p.splits;
  const uint first_step = split * steps_per_split, end_step = min(steps, first_step + steps_per_split);

  for (uint i = LANE; i < QUERIES * DIM_QUADS; i += LANES) {
    const uint n = i / DIM_QUADS, d = i % DIM_QUADS * 4, row = n / p.tile_heads, head = n % p.tile_heads;
    vec4 x = vec4(0);
    if (row < rows && head < heads) {
      const uint at = p.q_at + (row0 + row) * p.q_stride + (head0 + head) * KEY_DIM + d;
      [[unroll]] for (uint c = 0; c < 4; ++c) x[c] = d + c < KEY_DIM ? q[at + c] * p.scale : 0;
    }
    queries[n * QUERY_STRIDE + i % DIM_QUADS] = x;
  }
  if (LANE < PAGES) bound_pages[first_step % 2 * PAGES + LANE] = bound_page(begin / kPagePositions + first_step * PAGES + LANE, end);

  // What this lane handles: score_* in the scores, row_* in the softmax, octet and value_* in the sums of values.
  const uint score_quad = LANE % KEY_QUADS, score_query = LANE / KEY_QUADS % QUERY_BLOCKS * QUERIES_PER_LANE;
  const uint score_slice = LANE / (KEY_QUADS * QUERY_BLOCKS);
  const uint row_query = LANE / ROW_LANES, row_lane = LANE % ROW_LANES;
  const uint row = row_query / p.tile_heads, used = (rows * p.tile_heads + QUERIES_PER_LANE - 1) / QUERIES_PER_LANE * QUERIES_PER_LANE;
  const bool row_used = row_query < min(used, QUERIES);
  const uint row_head = head0 + min(row_query % p.tile_heads, heads - 1);
  const uvec2 row_keys = row_used && row < rows ? seen(first_position + row) : uvec2(0);
  const uint octet = LANE % DIM_OCTETS, value_query = LANE / DIM_OCTETS % QUERY_BLOCKS * QUERIES_PER_LANE;
  const uint value_slice = LANE / (DIM_OCTETS * QUERY_BLOCKS);

  // A sink acts like one more key, whose value is all zeros. It must be counted once, so only part 0 counts it, and in part 0 only
  // value slice 0 adds its weight to `sum`.
  const bool sink = HAS_SINKS != 0 && p.part_first + split == 0;
  float largest = sink ? vectors[p.sinks_at + row_head] : LOWEST;  // largest score of row_query so far
  float sum[QUERIES_PER_LANE];
  vec4 mixed[QUERIES_PER_LANE][2];
  [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
    sum[n] = sink && value_slice == 0 ? 1 : 0;
    mixed[n][0] = mixed[n][1] = vec4(0);
  }
  barrier();

  for (uint step = first_step; step < end_step; ++step) {
    const uint key0 = begin + step * KEYS, pages = step % 2 * PAGES;

    if (score_slice < SCORE_SLICES && score_query < used) {
      const uint page = bound_pages[pages + score_quad / 8];
      vec4 score[QUERIES_PER_LANE];
      [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) score[n] = vec4(0);
      if (page != UNBOUND && key0 + 4 * score_quad < end) {
        const uint block = k_block(page);
        // The number of rounds is constant, so that compilers can unroll the loop.
        for (uint i = 0; i < (DIM_QUADS + SCORE_SLICES - 1) / SCORE_SLICES; ++i) {
          const uint d = i * SCORE_SLICES + score_slice;
          if (DIM_QUADS % SCORE_SLICES != 0 && d >= DIM_QUADS) break;
          vec4 keys[4];
          load_keys(block, d, score_quad % 8 * 4, keys);
          [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
            const vec4 x = queries[(score_query + n) * QUERY_STRIDE + d];
            score[n] += x.x * keys[0] + x.y * keys[1] + x.z * keys[2] + x.w * keys[3];
          }
        }
      }
      [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
        scores[(score_slice * QUERIES + score_query + n) * SCORE_STRIDE + score_quad] = score[n];
      }
    }
    barrier();

    vec4 score[ROW_QUADS];
    if (row_used) {
      float most = LOWEST;
      [[unroll]] for (uint i = 0; i < ROW_QUADS; ++i) {
        const uint quad = row_lane + i * ROW_LANES;
        if (quad >= KEY_QUADS) continue;
        vec4 s = vec4(0);
        for (uint slice = 0; slice < SCORE_SLICES; ++slice) s += scores[(slice * QUERIES + row_query) * SCORE_STRIDE + quad];
        const uint page = bound_pages[pages + quad / 8];
        if (FORMAT == kKvQ8 && page != UNBOUND) s *= k_scales[(k_block(page) + K_SCALES_AT) / 4 + quad % 8];
        [[unroll]] for (uint c = 0; c < 4; ++c) {
          const uint key = key0 + 4 * quad + c;
          if (PLACES != 0 && key >= row_keys.x && key < row_keys.y) {
            s[c] += p.scale * placed(segment_row + first + row, segment_row + key, row_head, int(key) - int(first_position + row));
          }
          s[c] = biased(soft_capped(s[c], p.softcap), row_head, int(key) - int(first_position + row));
          if (key < row_keys.x || key >= row_keys.y || page == UNBOUND) s[c] = LOWEST;
          most = max(most, s[c]);
        }
        score[i] = s;
      }
      row_largest[row_query * ROW_LANES + row_lane] = most;
    }
    if (LANE < PAGES) bound_pages[(step + 1) % 2 * PAGES + LANE] = bound_page((key0 + KEYS) / kPagePositions + LANE, end);
    barrier();

    if (row_used) {
      float most = largest;
      for (uint i = 0; i < ROW_LANES; ++i) most = max(most, row_largest[row_query * ROW_LANES + i]);
      if (row_lane == 0) rescale[row_query] = exp(largest - most);
      largest = most;
      [[unroll]] for (uint i = 0; i < ROW_QUADS; ++i) {
        const uint quad = row_lane + i * ROW_LANES;
        if (quad >= KEY_QUADS) continue;
        vec4 weight;  // NaN where the score is NaN
        [[unroll]] for (uint c = 0; c < 4; ++c) weight[c] = score[i][c] == LOWEST ? 0 : exp(score[i][c] - most);
        scores[row_query * SCORE_STRIDE + quad] = weight;
      }
    }
    barrier();

    if (value_slice < VALUE_SLICES && value_query < used) {
      [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
        const float factor = rescale[value_query + n];
        sum[n] *= factor;
        mixed[n][0] *= factor;
        mixed[n][1] *= factor;
      }
      for (uint quad = value_slice; quad < KEY_QUADS && key0 + 4 * quad < end; quad += VALUE_SLICES) {
        const uint page = bound_pages[pages + quad / 8];
        if (page == UNBOUND) continue;
        const uint block = v_block(page);
        vec4 weight[QUERIES_PER_LANE];
        [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
          weight[n] = scores[(value_query + n) * SCORE_STRIDE + quad];
          sum[n] += weight[n].x + weight[n].y + weight[n].z + weight[n].w;
        }
        [[unroll]] for (uint c = 0; c < 4; ++c) {
          const uint position = (key0 + 4 * quad + c) % kPagePositions;
          vec4 values[2];
          load_values(block, octet, position, values);
          const float scale = FORMAT == kKvQ8 ? v_scales[block + V_SCALES_AT + position] : 1;
          [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
            // A key to which a row does not attend has weight 0. It is skipped because its value may be NaN, and 0 * NaN is NaN. (The value
            // may have been computed as NaN, or it is at or after `end`, where nothing was written.)
            if (weight[n][c] == 0) continue;
            const float w = FORMAT == kKvQ8 ? weight[n][c] * scale : weight[n][c];
            mixed[n][0] += w * values[0];
            mixed[n][1] += w * values[1];
          }
        }
      }
    }
    barrier();
  }

  // The results of the value slices are added to those of slice 0, one slice after another, through the shared memory of `queries`.
  for (uint slice = 1; slice < VALUE_SLICES; ++slice) {
    if (value_slice == slice) {
      [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
        const uint at = (value_query + n) * QUERY_STRIDE;
        queries[at + 2 * octet] = mixed[n][0];
        queries[at + 2 * octet + 1] = mixed[n][1];
        if (octet == 0) queries[at + LAST_QUAD].x = sum[n];
      }
    }
    barrier();
    if (value_slice == 0) {
      [[unroll]] for (uint n = 0; n < QUERIES_PER_LANE; ++n) {
        const uint at = (value_query + n) * QUERY_STRIDE;
        mixed[n][0] += queries[at + 2 * octet];
        mixed[n][1] += queries[at + 2 * octet + 1];
        sum[n] += queries[at + LAST_QUAD].x;
      }
    }
    barrier();
  }

  const uint part = p.part_first + split;
  if (p.parts > 1 && row_lane == 0 && row_used && row < rows && row_query % p.tile_heads < heads) {
    const uint n = (row0 + row) * all_heads + head0 + row_query % p.tile_heads;
    y[p.states_at + (n * p.parts + part) * 2] = largest;
  }
  if (value_slice != 0) return;
  [[unroll]] for (uint i = 0; i < QUERIES_PER_LANE; ++i) {
    const uint tile_row = (value_query + i) / p.tile_heads, head = (value_query + i) % p.tile_heads;
    if (tile_row >= rows || head >= heads) continue;
    if (p.parts > 1) {
      const uint at = ((row0 + tile_row) * all_heads + head0 + head) * p.parts + part;
      if (octet == 0) y[p.states_at + at * 2 + 1] = sum[i];
      [[unroll]] for (uint c = 0; c < 8; ++c) y[at * V_DIM + 8 * octet + c] = mixed[i][c / 4][c % 4];
    } else {
      const uint at = p.out_at + (row0 + tile_row) * p.out_stride + (head0 + head) * VALUE_DIM;
      [[unroll]] for (uint c = 0; c < 8; ++c) {
        if (8 * octet + c < VALUE_DIM) y[at + 8 * octet + c] = mixed[i][c / 4][c % 4] / sum[i];
      }
    }
  }
}
