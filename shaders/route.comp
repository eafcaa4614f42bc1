#version 450
#extension GL_GOOGLE_include_directive : require
// Computes Route: chooses the experts of a row, one expert in each round. See RouteParams in params.h. A lane handles every LANES-th
// expert. The experts with the largest ranks are chosen. The ranks are computed again in each round, because 4,096 of them do not fit into
// the shared memory that Vulkan guarantees. `precise` makes the compiler compute the same bits each time.
#define PUSH RouteParams
#include "common.glsl"
#include "finite.glsl"

layout(constant_id = kRouteScore) const uint SCORE = kRouteSoftmax;

layout(set = 0, binding = 0) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 1) readonly buffer Vectors { float vectors[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float y[]; };

const uint GROUPS = kRouteExperts / 2;  // maximum number of groups of experts
shared float group_sums[GROUPS];        // for each group, the sum of its two largest ranks
shared uint kept_groups[GROUPS / 32];   // a bit for each group; set if the group is kept
shared float weights[kRouteChosen];
shared uint chosen_experts[kRouteChosen];

uint logits_at;
float largest, total;  // with kRouteSoftmax: the largest logit, and the sum of exp(logit - largest) over all experts

float score_of(uint expert) {
  const float x = logits[logits_at + expert];
  precise float score;
  if (SCORE == kRouteSigmoid) {
    score = x < -80.0 ? 0.0 : 1.0 / (1.0 + exp(-x));
  } else {
    score = exp(x - largest) / total;
  }
  return score;
}
float rank_of(uint expert) {
  if (SCORE == kRouteSigmoid && p.has_bias == 0 && p.expert_groups == 1) return logits[logits_at + expert];
  precise float rank = score_of(expert);
  if (p.has_bias != 0) rank += vectors[p.bias_at + expert];
  return rank;
}

// Sets kept_groups to the p.kept groups with the largest sums in group_sums.
void keep_groups() {
  const uint size = p.experts / p.expert_groups;
  for (uint g = LANE; g < p.expert_groups; g += LANES) {
    float first = LOWEST, second = LOWEST;
    for (uint e = g * size; e < (g + 1) * size; ++e) {
      const float rank = rank_of(e);
      if (rank > first) {
        second = first;
        first = rank;
      } else if (rank > second) {
        second = rank;
      }
    }
    group_sums[g] = first + second;
  }
  barrier();
  for (uint word = LANE; word * 32 < p.expert_groups; word += LANES) {
    uint bits = 0;
    for (uint g = word * 32; g < min(word * 32 + 32, p.expert_groups); ++g) {
      const float sum = group_sums[g];
      uint before = 0;  // number of groups with a larger sum, or with the same sum and a lower index
      for (uint other = 0; other < p.expert_groups; ++other) before += uint(group_sums[other] > sum || group_sums[other] == sum && other < g);
      if (before < p.kept) bits |= 1u << g % 32;
    }
    kept_groups[word] = bits;
  }
  barrier();
}
bool is_kept(uint expert) {
  if (p.expert_groups == 1) return true;
  const uint g = expert / (p.experts / p.expert_groups);
  return (kept_groups[g / 32] >> g % 32 & 1) != 0;
}

void main() {
  if (group() >= p.groups) return;
  const uint out_at = p.out_at + group() * p.out_stride;
  logits_at = p.logits_at + group() * p.logits_stride;

  float unfit = 0;  // 1 if a logit is infinite or NaN
  largest = LOWEST;
  for (uint e = LANE; e < p.experts; e += LANES) {
    const float x = logits[logits_at + e];
    if (!finite(x)) unfit = 1;
    largest = max(largest, x);
  }
  if (workgroup_max(unfit) != 0) {
    for (uint i = LANE; i < p.chosen; i += LANES) {
      y[out_at + i] = float(i);
      y[out_at + p.chosen + i] = NOT_A_NUMBER;
    }
    return;
  }
  if (SCORE == kRouteSoftmax) {
    largest = workgroup_max(largest);
    float sum = 0;
    for (uint e = LANE; e < p.experts; e += LANES) sum += exp(logits[logits_at + e] - largest);
    total = workgroup_add(sum);
  }
  if (p.expert_groups > 1) keep_groups();

  // Each round chooses the expert that comes after last_expert if the experts are sorted by descending rank, and by index for equal ranks.
  float last = 0;
  uint last_expert = 0;
  for (uint i = 0; i < p.chosen; ++i) {
    float best = LOWEST;
    uint best_expert = p.experts;
    for (uint e = LANE; e < p.experts; e += LANES) {
      if (!is_kept(e)) continue;
      const float rank = rank_of(e);
      const bool is_left = i == 0 || rank < last || rank == last && e > last_expert;
      if (is_left && (rank > best || best_expert == p.experts)) {
        best = rank;
        best_expert = e;
      }
    }
    last = workgroup_max(best);
    // float() is exact, because there are at most 4,096 experts.
    last_expert = uint(-workgroup_max(best == last ? -float(best_expert) : -float(p.experts)));
    last_expert = min(last_expert, p.experts - 1);
    if (LANE == 0) {
      chosen_experts[i] = last_expert;
      weights[i] = score_of(last_expert);
    }
  }
  barrier();
  float divisor = 1;
  if (p.normalised != 0) {
    divisor = 0;
    for (uint i = 0; i < p.chosen; ++i) divisor += weights[i];
    divisor += p.floor;
  }
  for (uint i = LANE; i < p.chosen; i += LANES) {
    const uint expert = chosen_experts[i];
    float weight = weights[i] / divisor * p.scale;
    if (p.has_scales != 0) weight *= vectors[p.scales_at + expert];
    y[out_at + i] = float(expert);
    y[out_at + p.chosen + i] = weight;
  }
}
