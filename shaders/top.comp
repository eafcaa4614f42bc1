#version 450
#extension GL_GOOGLE_include_directive : require
// Finds the k largest logits of a row, and the other numbers that a sampler needs. See TopParams in params.h.
// STAGE 0 ranks the logits in a block of the vocabulary. STAGE 1 ranks the results of all blocks of a row. Both stages find the k-th
// largest key by radix selection, and then collect this key and all larger keys. Radix selection takes 8 bits of the keys at a time, from
// the highest bits down, and makes a histogram of these bits over the keys that may still be the k-th largest.
// A key is (order, ~id), where `order` is the logit, converted to an unsigned number so that larger logits have larger numbers. So no two
// keys are equal, and of two equal logits the one with the smaller id has the larger key.
#define PUSH TopParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kTopStage) const uint STAGE = 0;
layout(constant_id = kTopK) const uint K = 1;

layout(set = 0, binding = 0) readonly buffer Logits { uint logits[]; };
layout(set = 0, binding = 1) readonly buffer Meta { uint meta[]; };
layout(set = 0, binding = 2) buffer Found { uint found[]; };
layout(set = 0, binding = 3) writeonly buffer Out { uint y[]; };

const uint FOUND_WORDS = kTopHead + 2 * K;
const uint SORTED = K <= 16 ? 16 : K <= 32 ? 32 : K <= 64 ? 64 : 128;
const uint BINS = 256, BINS_PER_LANE = BINS / LANES;
const uint NO_ID = 0xffffffffu;

shared uint excluded[kTopBlock / 32];
shared uint histogram[BINS];
shared uint lane_counts[LANES], bin_counts[LANES];  // for each subgroup: the number of its lanes, and the number of keys in their bins
shared uint chosen_bin, chosen_above, taken, first_bad, best;
shared uvec2 chosen[SORTED];

uint row, block;  // the row of this group; in STAGE 0 also its block of the row

uint order_of(uint bits) { return bits << 1 == 0 ? 0x80000000u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u; }
uint bits_of(uint order) { return (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order; }
bool above(uvec2 a, uvec2 b) { return a.x > b.x || a.x == b.x && a.y > b.y; }

// elements() returns the number of elements that this group ranks: logits of a block in STAGE 0, results of blocks in STAGE 1. key_of()
// returns the key of an element. It returns (0, 0), which is smaller than the key of any id, for an excluded id in STAGE 0, and for an
// unused element of a block's results in STAGE 1.
uint elements() { return STAGE == 0 ? min(p.width - block * kTopBlock, kTopBlock) : p.blocks * K; }
uvec2 key_of(uint element) {
  if (STAGE == 0) {
    if ((excluded[element / 32] >> element % 32 & 1) != 0) return uvec2(0);
    const uint id = block * kTopBlock + element;
    return uvec2(order_of(logits[p.logits_at + row * p.logits_stride + id]), ~id);
  }
  const uint at = p.found_at + (row * p.blocks + element / K) * FOUND_WORDS + kTopHead + element % K;
  return found[at + K] == NO_ID ? uvec2(0) : uvec2(order_of(found[at]), ~found[at + K]);
}

uint workgroup_count(uint n) { return uint(workgroup_add(float(n))); }  // exact if the total is below 2^24

// Writes to chosen_bin the bin of the histogram that holds the `rank`-th largest key (counted from 1), and to chosen_above the number of
// keys in higher bins. The bins are divided among the lanes in the order of (subgroup, invocation in the subgroup), highest bins first.
// This works with subgroups of any size.
void choose_bin(uint rank) {
  const uint lanes = subgroupAdd(1u), before = subgroupExclusiveAdd(1u);
  if (subgroupElect()) lane_counts[gl_SubgroupID] = lanes;
  barrier();
  uint lane = before;
  for (uint i = 0; i < gl_SubgroupID; ++i) lane += lane_counts[i];
  uint count = 0;
  for (uint i = 0; i < BINS_PER_LANE; ++i) count += histogram[BINS - 1 - lane * BINS_PER_LANE - i];
  const uint subgroup_count = subgroupAdd(count);
  if (subgroupElect()) bin_counts[gl_SubgroupID] = subgroup_count;
  uint above = subgroupExclusiveAdd(count);
  barrier();
  for (uint i = 0; i < gl_SubgroupID; ++i) above += bin_counts[i];
  for (uint i = 0; i < BINS_PER_LANE; ++i) {
    const uint bin = BINS - 1 - lane * BINS_PER_LANE - i;
    if (above < rank && rank <= above + histogram[bin]) {
      chosen_bin = bin;
      chosen_above = above;
    }
    above += histogram[bin];
  }
  barrier();
}

// Writes the K largest keys to `chosen`, in no particular order, or all keys if there are at most K. `candidates` is the number of keys
// that are not (0, 0).
void choose(uint candidates) {
  for (uint i = LANE; i < SORTED; i += LANES) chosen[i] = uvec2(0);
  if (LANE == 0) taken = 0;
  uvec2 limit = uvec2(0), mask = uvec2(0);
  uint rank = K;
  for (uint digit = 0; candidates > K && digit < 8; ++digit) {
    for (uint i = LANE; i < BINS; i += LANES) histogram[i] = 0;
    barrier();
    const uint word = digit / 4, shift = 24 - digit % 4 * 8;
    for (uint i = LANE; i < elements(); i += LANES) {
      const uvec2 key = key_of(i);
      if (key != uvec2(0) && (key & mask) == limit) atomicAdd(histogram[key[word] >> shift & 255], 1);
    }
    barrier();
    choose_bin(rank);
    rank -= chosen_above;
    limit[word] |= chosen_bin << shift;
    mask[word] |= 255u << shift;
    const bool whole = histogram[chosen_bin] == rank;
    barrier();  // the next round overwrites what this round has just read
    if (whole) break;
  }
  barrier();
  for (uint i = LANE; i < elements(); i += LANES) {
    const uvec2 key = key_of(i), head = key & mask;
    if (key != uvec2(0) && !above(limit, head)) {
      const uint at = atomicAdd(taken, 1);
      if (at < SORTED) chosen[at] = key;
    }
  }
  barrier();
}

// Writes the largest key to chosen[0]. Used instead of choose() if K is 1.
void choose_one() {
  uvec2 largest = uvec2(0);
  for (uint i = LANE; i < elements(); i += LANES) {
    const uvec2 key = key_of(i);
    if (above(key, largest)) largest = key;
  }
  if (LANE == 0) {
    best = 0;
    chosen[0] = uvec2(0);
  }
  barrier();
  atomicMax(best, largest.x);
  barrier();
  if (largest.x == best) atomicMax(chosen[0].y, largest.y);
  barrier();
  if (LANE == 0) chosen[0].x = best;
  barrier();
}

// Sorts `chosen` in descending order by bitonic sort (Batcher 1968).
void sort() {
  for (uint size = 2; size <= SORTED; size *= 2) {
    for (uint step = size / 2; step > 0; step /= 2) {
      for (uint i = LANE; i < SORTED; i += LANES) {
        const uint j = i ^ step;
        if (j < i) continue;
        const uvec2 a = chosen[i], b = chosen[j];
        if (above(b, a) == ((i & size) == 0)) {
          chosen[i] = b;
          chosen[j] = a;
        }
      }
      barrier();
    }
  }
}

void main() {
  if (group() >= p.groups) return;
  row = STAGE == 0 ? group() / p.blocks : group();
  block = STAGE == 0 ? group() % p.blocks : 0;
  const uint record = p.rows_at + row * kTopRowWords, reported_at = meta[record], reported = meta[record + 1], out_at = meta[record + 2],
             mask_at = meta[record + 3];
  // In STAGE 0, the group's results are written from found_at on. In STAGE 1, the results of the row's first block begin at found_at.
  const uint found_at = p.found_at + (STAGE == 0 ? group() : row * p.blocks) * FOUND_WORDS;

  if (LANE == 0) first_bad = NO_ID;
  uint bad = 0, candidates = 0;
  float largest = LOWEST, sum = 0;
  if (STAGE == 0) {
    const uint logits_at = p.logits_at + row * p.logits_stride, at = logits_at + block * kTopBlock;
    // past_end is a mask of those bits in the last word of `excluded` that belong to no id.
    const uint words = (elements() + 31) / 32, past_end = elements() % 32 == 0 ? 0 : ~0u << elements() % 32;
    for (uint i = LANE; i < words; i += LANES) excluded[i] = mask_at == 0 ? 0 : ~meta[mask_at + block * (kTopBlock / 32) + i];
    barrier();
    for (uint i = LANE; i < reported; i += LANES) {
      const uint id = meta[reported_at + i];
      if (id / kTopBlock != block || id >= p.width) continue;
      atomicOr(excluded[id % kTopBlock / 32], 1u << id % 32);
      y[out_at + FOUND_WORDS + i] = logits[logits_at + id];
    }
    barrier();
    uint out_of_it = 0;
    for (uint i = LANE; i < words; i += LANES) out_of_it += bitCount(excluded[i] & ~(i == words - 1 ? past_end : 0));
    candidates = elements() - workgroup_count(out_of_it);
    for (uint i = LANE; i < elements(); i += LANES) {
      const float x = uintBitsToFloat(logits[at + i]);
      if (finite(x)) {
        largest = max(largest, x);
      } else {
        ++bad;
        atomicMin(first_bad, block * kTopBlock + i);
      }
    }
    largest = workgroup_max(largest);
    for (uint i = LANE; i < elements(); i += LANES) sum += exp(min(uintBitsToFloat(logits[at + i]) - largest, 0));
  } else {
    barrier();
    for (uint i = LANE; i < p.blocks; i += LANES) {
      const uint at = found_at + i * FOUND_WORDS;
      bad += found[at];
      atomicMin(first_bad, found[at + 1]);
      candidates += found[at + 3];
      largest = max(largest, uintBitsToFloat(found[at + 4]));
    }
    candidates = workgroup_count(candidates);
    largest = workgroup_max(largest);
    for (uint i = LANE; i < p.blocks; i += LANES) {
      const uint at = found_at + i * FOUND_WORDS;
      sum += exp(uintBitsToFloat(found[at + 4]) - largest) * uintBitsToFloat(found[at + 5]);
    }
  }
  bad = workgroup_count(bad);
  sum = workgroup_add(sum);
  barrier();  // after this barrier, all lanes see the final values of `excluded` and `first_bad`

  if (K == 1) {
    choose_one();
  } else {
    choose(candidates);
    if (STAGE == 1) sort();
  }

  const uint count = min(K, candidates);
  for (uint i = LANE; i < FOUND_WORDS; i += LANES) {
    uint word = 0;
    if (i >= kTopHead) {
      const uint n = (i - kTopHead) % K;
      const bool is_id = i >= kTopHead + K;
      word = n >= count ? (is_id ? NO_ID : floatBitsToUint(LOWEST)) : is_id ? ~chosen[n].y : bits_of(chosen[n].x);
    } else if (i == 0) {
      word = bad;
    } else if (i == 1) {
      word = first_bad;
    } else if (i == 2) {
      word = first_bad == NO_ID ? 0 : logits[p.logits_at + row * p.logits_stride + first_bad];
    } else if (i == 3) {
      word = count;
    } else if (i == 4) {
      word = floatBitsToUint(largest);
    } else if (i == 5) {
      word = floatBitsToUint(sum);
    }
    if (STAGE == 0) {
      found[found_at + i] = word;
    } else {
      y[out_at + i] = word;
    }
  }
}
