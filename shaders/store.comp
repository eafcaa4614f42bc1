#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Applies the rotary embedding (Su et al. 2021) to q and k in place, and writes k and v to their pages. See StoreParams in params.h. SPAN
// lanes handle one head of one row (a unit), and each lane handles 4 neighbouring dimensions at a time. Neighbouring units are neighbouring
// rows of the same head, so that their lanes write neighbouring words of K.
#define PUSH StoreParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kStoreFormat) const uint FORMAT = kKvF16;
layout(constant_id = kStoreKeyDim) const uint KEY_DIM = 64;
layout(constant_id = kStoreValueDim) const uint VALUE_DIM = 64;
layout(constant_id = kStoreSpan) const uint SPAN = 16;
#include "kv.glsl"

const uint K_QUADS = K_DIM / 4, V_QUADS = V_DIM / 4;
const uint QUADS_PER_LANE = ((K_QUADS > V_QUADS ? K_QUADS : V_QUADS) + SPAN - 1) / SPAN;

layout(set = 0, binding = 0) buffer Q { float q[]; };
layout(set = 0, binding = 1) buffer K { float k[]; };
layout(set = 0, binding = 2) readonly buffer V { float v[]; };
layout(set = 0, binding = 3) writeonly buffer KPages { uint k_pages[]; };
layout(set = 0, binding = 4) writeonly buffer VPages { uint v_pages[]; };
layout(set = 0, binding = 5) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 5) readonly buffer MetaFloats { float meta_float[]; };

shared float largest[LANES];

const uint OF_Q = 0, OF_K = 1, OF_V = 2;
float load(uint kind, uint at) { return kind == OF_Q ? q[at] : kind == OF_K ? k[at] : v[at]; }

// Returns dimension d of the head that begins at `at`. The result is rotated if d is a rotated dimension of q or k, and 0 if d is in the
// padding.
float turned(uint kind, uint at, uint d, uint turns) {
  if (d >= (kind == OF_V ? VALUE_DIM : KEY_DIM)) return 0;
  const float x = load(kind, at + d);
  if (kind == OF_V || d >= 2 * p.pairs) return x;
  const bool second = p.interleaved != 0 ? (d & 1) != 0 : d >= p.pairs;
  const uint pair = p.interleaved != 0 ? d / 2 : second ? d - p.pairs : d;
  const uint other = p.interleaved != 0 ? d ^ 1 : second ? d - p.pairs : d + p.pairs;
  const float y = load(kind, at + other), c = meta_float[turns + pair], s = meta_float[turns + p.pairs + pair];
  return second ? x * c + y * s : x * c - y * s;
}

void write(uint kind, uint at, uint value) {
  if (kind == OF_K) {
    k_pages[at] = value;
  } else {
    v_pages[at] = value;
  }
}

void main() {
  if (group() >= p.groups) return;
  const uint unit = group() * (LANES / SPAN) + LANE / SPAN, lane = LANE % SPAN;
  const uint row = unit % p.rows, head = unit / p.rows;
  const bool inside = head < p.q_heads + p.kv_heads + (p.page_count > 0 ? p.kv_heads : 0);
  const uint kind = head < p.q_heads ? OF_Q : head < p.q_heads + p.kv_heads ? OF_K : OF_V;
  const uint kv_head = kind == OF_Q ? 0 : (head - p.q_heads) % max(p.kv_heads, 1);
  const uint quads = kind == OF_V ? V_QUADS : K_QUADS;
  const uint at = kind == OF_Q   ? p.q_at + row * p.q_stride + head * KEY_DIM
                  : kind == OF_K ? p.k_at + row * p.k_stride + kv_head * KEY_DIM
                                 : p.v_at + row * p.v_stride + kv_head * VALUE_DIM;

  vec4 x[QUADS_PER_LANE];
  float most = 0;
  const float factor = inside && kind == OF_Q && p.q_factors != 0 ? meta_float[p.factors_at + row] : 1;
  [[unroll]] for (uint i = 0; i < QUADS_PER_LANE; ++i) {
    x[i] = vec4(0);
    const uint quad = lane + i * SPAN, turns = p.turns_at + row * 2 * p.pairs;
    if (!inside || quad >= quads) continue;
    [[unroll]] for (uint c = 0; c < 4; ++c) {
      x[i][c] = turned(kind, at, 4 * quad + c, turns);
      most = finite(most) && finite(x[i][c]) ? max(most, abs(x[i][c])) : NOT_A_NUMBER;
    }
  }
  largest[LANE] = most;
  barrier();  // now all lanes have loaded both dimensions of their pairs, so q and k may be overwritten
  if (!inside) return;

  if (kind != OF_V) {
    [[unroll]] for (uint i = 0; i < QUADS_PER_LANE; ++i) {
      [[unroll]] for (uint c = 0; c < 4; ++c) {
        const uint d = 4 * (lane + i * SPAN) + c;
        if (d >= KEY_DIM || (d >= 2 * p.pairs && (kind == OF_K || p.q_factors == 0))) continue;
        if (kind == OF_Q) {
          q[at + d] = factor * x[i][c];
        } else {
          k[at + d] = x[i][c];
        }
      }
    }
  }

  if (kind == OF_Q || p.page_count == 0) return;
  const uint cell = meta[p.cells_at + row], page = cell / kPagePositions - p.page_first, position = cell % kPagePositions;
  if (page >= p.page_count) return;
  const uint block =
      kind == OF_K ? page * p.k_page_words + kv_head * K_BLOCK_WORDS : page * p.v_page_words + kv_head * V_BLOCK_WORDS;
  float inverse = 0;
  if (FORMAT == kKvQ8) {
    // If one of the numbers is not finite, the scale becomes NaN, so that every product with the codes is NaN.
    most = 0;
    for (uint i = 0; i < SPAN; ++i) {
      const float other = largest[LANE - lane + i];
      most = finite(most) && finite(other) ? max(most, other) : NOT_A_NUMBER;
    }
    inverse = most > 0 ? 127 / most : 0;
    if (lane == 0) write(kind, block + (kind == OF_K ? K_SCALES_AT : V_SCALES_AT) + position, floatBitsToUint(most / 127));
  }
  [[unroll]] for (uint i = 0; i < QUADS_PER_LANE; ++i) {
    const uint quad = lane + i * SPAN;
    if (quad >= quads) continue;
    uint words[4];
    if (FORMAT == kKvF32) {
      [[unroll]] for (uint c = 0; c < 4; ++c) words[c] = floatBitsToUint(x[i][c]);
    } else if (FORMAT == kKvF16) {
      words[0] = packHalf2x16(x[i].xy);
      words[1] = packHalf2x16(x[i].zw);
    } else {
      const ivec4 code = ivec4(clamp(roundEven(x[i] * inverse), -127, 127)) & 255;
      words[0] = uint(code.x | code.y << 8 | code.z << 16 | code.w << 24);
    }
    [[unroll]] for (uint c = 0; c < 4 / PER_WORD; ++c) {
      const uint d = 4 * quad + c * PER_WORD;
      write(kind, block + (kind == OF_K ? k_word(position, d) : v_word(position, d)), words[c]);
    }
  }
}
