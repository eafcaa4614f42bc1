#version 450
#extension GL_GOOGLE_include_directive : require
// Computes the recurrence Scan (core/ops.h). See ScanParams in params.h. The columns of a head's matrix S are independent of one another,
// so a group handles COLS columns, which its lanes hold in registers. PARTS lanes share a column, and each of these lanes has every
// PARTS-th quad (4 neighbouring rows) of the matrix. q, k, v and the factors of STEP batch rows are loaded into shared memory together.
// With the rule delta, each batch row needs one barrier, to add up the lanes' parts of S^T k. With the rule ssd it needs none. The lanes'
// parts of S^T q are added up for STEP batch rows together, after the last of these rows.
#define PUSH ScanParams
#include "common.glsl"

layout(constant_id = kScanRule) const uint RULE = kScanDelta;
layout(constant_id = kScanKeyDim) const uint KEY_DIM = 64;
layout(constant_id = kScanCols) const uint COLS = 32;

const uint PARTS = LANES / COLS;
const uint QUADS = (KEY_DIM + 4 * PARTS - 1) / (4 * PARTS);  // number of quads of the matrix that a lane holds
const uint ROW_QUADS = PARTS * QUADS;                        // number of quads in a row of k or q; numbers after KEY_DIM are zeros
const uint STEP = ROW_QUADS <= 32 ? 8 : ROW_QUADS >= 256 ? 1 : 256 / ROW_QUADS;

layout(set = 0, binding = 0) readonly buffer Q { float q[]; };
layout(set = 0, binding = 1) readonly buffer K { float k[]; };
layout(set = 0, binding = 2) readonly buffer V { float v[]; };
layout(set = 0, binding = 3) buffer Work { float work[]; };
layout(set = 0, binding = 4) writeonly buffer Out { float y[]; };
layout(set = 0, binding = 5) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 6) readonly buffer From { float from[]; };
layout(set = 0, binding = 7) writeonly buffer To { float to[]; };
#include "spans.glsl"

shared vec4 keys[STEP * ROW_QUADS], queries[STEP * ROW_QUADS];
shared float values[STEP * COLS];
shared vec3 gates[STEP];            // {decay, gain, skip}
shared float reads[2 * LANES];      // each lane's part of S^T k, for an even row of the step and for an odd row
shared float sums[STEP * LANES];    // each lane's part of S^T q

// The lane's quads of the matrix S. Row i of S lies in quad i / 4, and s[j] is quad part + j PARTS of the lane's column.
vec4 s[QUADS];
uint part, col;  // the lane has part number `part` of column first_col + col
uint first_col;  // the group's first column

uint row_of(uint quad, uint i) { return (quad * PARTS + part) * 4 + i; }
bool owns(uint quad, uint i) { return row_of(quad, i) < KEY_DIM && first_col + col < p.value_dim; }

// Returns the offset, in words, of number i of the lane's quad `quad` within a head's matrix.
uint word_of(uint quad, uint i) { return row_of(quad, i) * p.value_dim + first_col + col; }

vec4 quad_of_q(uint at, uint i) {
  vec4 x = vec4(0);
  [[unroll]] for (uint j = 0; j < 4; ++j) if (i + j < KEY_DIM) x[j] = q[at + i + j];
  return x;
}
vec4 quad_of_k(uint at, uint i) {
  vec4 x = vec4(0);
  [[unroll]] for (uint j = 0; j < 4; ++j) if (i + j < KEY_DIM) x[j] = k[at + i + j];
  return x;
}

// Loads q, k, v and the gates for rows [first, first + count) of the dispatch's block of rows into shared memory.
void load_step(uint first, uint count, uint head) {
  const uint key_head = p.tiled != 0 ? head % p.key_heads : head / (p.heads / p.key_heads);
  for (uint i = LANE; i < count * ROW_QUADS; i += LANES) {
    const uint row = first + i / ROW_QUADS, at = i % ROW_QUADS * 4;
    queries[i] = quad_of_q(p.q_at + row * p.q_stride + key_head * KEY_DIM, at);
    keys[i] = quad_of_k(p.k_at + row * p.k_stride + key_head * KEY_DIM, at);
  }
  for (uint i = LANE; i < count * COLS; i += LANES) {
    const uint c = first_col + i % COLS;
    values[i] = c < p.value_dim ? v[p.v_at + (first + i / COLS) * p.v_stride + head * p.value_dim + c] : 0;
  }
  if (LANE < count) {
    const uint at = ((first + LANE) * p.heads + head) * kGateWords;
    gates[LANE] = vec3(work[at], work[at + 1], work[at + 2]);
  }
}

// Updates the matrix S by row r of the rows in shared memory, and writes the lane's part of S^T q to `sums`.
void compute_row(uint r) {
  const float decay = gates[r].x;
  float added = gates[r].y * values[r * COLS + col];
  if (RULE == kScanDelta) {
    vec4 sum = vec4(0);
    [[unroll]] for (uint j = 0; j < QUADS; ++j) sum += s[j] * keys[r * ROW_QUADS + j * PARTS + part];
    float read = sum.x + sum.y + sum.z + sum.w;
    if (PARTS > 1) {
      const uint at = r % 2 * LANES;
      reads[at + LANE] = read;
      // `reads` has space for two rows. All lanes have read this row's numbers before the barrier of the next row. So the row after the
      // next can overwrite them.
      barrier();
      read = reads[at + col];
      for (uint i = 1; i < PARTS; ++i) read += reads[at + i * COLS + col];
    }
    added = gates[r].y * (values[r * COLS + col] - decay * read);
  }
  vec4 sum = vec4(0);
  [[unroll]] for (uint j = 0; j < QUADS; ++j) {
    s[j] = decay * s[j] + added * keys[r * ROW_QUADS + j * PARTS + part];
    sum += s[j] * queries[r * ROW_QUADS + j * PARTS + part];
  }
  sums[r * LANES + LANE] = sum.x + sum.y + sum.z + sum.w;
}

void main() {
  if (group() >= p.groups) return;
  const Span span = span_of(group() / p.blocks / p.heads);
  if (!runs_here(span)) return;
  const uint head = group() / p.blocks % p.heads, matrix_at = head * KEY_DIM * p.value_dim;
  part = LANE / COLS, col = LANE % COLS, first_col = group() % p.blocks * COLS;

  const uint from_at = (span.source - p.from_first) * p.state_words + matrix_at;
  [[unroll]] for (uint j = 0; j < QUADS; ++j) {
    s[j] = vec4(0);
    [[unroll]] for (uint i = 0; i < 4; ++i) {
      if (!owns(j, i)) continue;
      if (span.before > 0) {
        s[j][i] = work[p.carry_in_at + matrix_at + word_of(j, i)];
      } else if (span.source != kNoState) {
        s[j][i] = from[from_at + word_of(j, i)];
      }
    }
  }

  save_index = 0;
  for (uint first = 0; first < span.rows; first += STEP) {
    const uint count = min(STEP, span.rows - first);
    barrier();  // other lanes may still be reading the shared memory of the step before
    load_step(span.first + first, count, head);
    barrier();
    for (uint r = 0; r < count; ++r) {
      compute_row(r);
      uint state;
      if (!take_save(span, span.before + first + r + 1, state) || state == kNoState) continue;
      const uint to_at = (state - p.to_first) * p.state_words + matrix_at;
      [[unroll]] for (uint j = 0; j < QUADS; ++j) {
        [[unroll]] for (uint i = 0; i < 4; ++i) if (owns(j, i)) to[to_at + word_of(j, i)] = s[j][i];
      }
    }
    barrier();
    for (uint i = LANE; i < count * COLS; i += LANES) {
      const uint r = i / COLS, c = i % COLS;
      if (first_col + c >= p.value_dim) continue;
      float sum = gates[r].z * values[i];
      for (uint j = 0; j < PARTS; ++j) sum += sums[r * LANES + j * COLS + c];
      y[p.out_at + (span.first + first + r) * p.out_stride + head * p.value_dim + first_col + c] = sum;
    }
  }

  if (span.after == 0) return;
  [[unroll]] for (uint j = 0; j < QUADS; ++j) {
    [[unroll]] for (uint i = 0; i < 4; ++i) if (owns(j, i)) work[p.carry_out_at + matrix_at + word_of(j, i)] = s[j][i];
  }
}
