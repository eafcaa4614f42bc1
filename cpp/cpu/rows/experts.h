// Kernels of Route and Experts (core/ops.h) with sixteen lanes.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows/math.h"
#include "cpu/rows/sixteens.h"

namespace pumice::cpu {
namespace {

// Computes the scores of all experts. If a logit is infinite or NaN, returns false and does not write `scores`.
template <Lanes16 Lanes>
PUMICE_INLINE bool route_scores(const RouteCall& call, const float* logits, float* scores) {
  Lanes top = Lanes::set(-kInfinity);
  bool finite = true;
  sixteens(call.experts, [&](Int i, int count) __attribute__((always_inline)) {
    const Lanes x = load<Lanes>(logits + i, count);
    finite = finite && !any(is_nan(x - x));
    top = max(count == kLanes ? x : select(Lanes::between(0, count), x, Lanes::set(-kInfinity)), top);
  });
  if (!finite) return false;
  if (call.score == RouteScore::sigmoid) {
    sixteens(call.experts,
             [&](Int i, int count) __attribute__((always_inline)) { store(scores + i, sigmoid(load<Lanes>(logits + i, count)), count); });
    return true;
  }
  const Lanes largest = Lanes::set(max_lane(top));
  Lanes total = Lanes::set(0.0f);
  sixteens(call.experts, [&](Int i, int count) __attribute__((always_inline)) {
    Lanes e = exp_negative(load<Lanes>(logits + i, count) - largest);
    if (count < kLanes) e = select(Lanes::between(0, count), e, Lanes::set(0.0f));
    store(scores + i, e, count);
    total = total + e;
  });
  const Lanes divisor = Lanes::set(sum(total));
  sixteens(call.experts,
           [&](Int i, int count) __attribute__((always_inline)) { store(scores + i, load<Lanes>(scores + i, count) / divisor, count); });
  return true;
}

// Sets the ranks of all experts outside of the best `kept` groups to -infinity. The score of a group is the sum of its two largest ranks.
inline void keep_groups(const RouteCall& call, float* ranks) {
  const int size = call.experts / call.groups;
  float best[kMaxExperts];
  for (int g = 0; g < call.groups; ++g) {
    float first = -kInfinity, second = -kInfinity;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      if (ranks[e] > first) {
        second = first;
        first = ranks[e];
      } else if (ranks[e] > second) {
        second = ranks[e];
      }
    }
    best[g] = first + second;
  }
  for (int g = 0; g < call.groups; ++g) {
    int before = 0;  // number of groups with a larger score, or with the same score and a smaller index
    for (int other = 0; other < call.groups; ++other) before += best[other] > best[g] || (best[other] == best[g] && other < g);
    if (before < call.kept) continue;
    for (int e = g * size; e < (g + 1) * size; ++e) ranks[e] = -kInfinity;
  }
}

template <Lanes16 Lanes>
void route(const RouteCall& call, const float* logits, float* out) {
  float scores[kMaxExperts], ranks[kMaxExperts];
  float* weights = out + call.chosen;
  if (!route_scores<Lanes>(call, logits, scores)) {
    for (int i = 0; i < call.chosen; ++i) {
      out[i] = static_cast<float>(i);
      weights[i] = __builtin_nanf("");
    }
    return;
  }
  const bool by_logit = call.score == RouteScore::sigmoid && !call.bias && call.groups == 1;
  for (int e = 0; e < call.experts; ++e) ranks[e] = by_logit ? logits[e] : call.bias ? scores[e] + call.bias[e] : scores[e];
  if (call.groups > 1) keep_groups(call, ranks);
  float total = 0;
  for (int i = 0; i < call.chosen; ++i) {
    int best = 0;
    for (int e = 1; e < call.experts; ++e)
      if (ranks[e] > ranks[best]) best = e;
    ranks[best] = -kInfinity;
    out[i] = static_cast<float>(best);
    weights[i] = scores[best];
    total += scores[best];
  }
  for (int i = 0; i < call.chosen; ++i) {
    if (call.normalised) weights[i] /= total + call.floor;
    weights[i] *= call.scale;
    if (call.scales) weights[i] *= call.scales[static_cast<int>(out[i])];
  }
}

template <Lanes16 Lanes>
void fold_choices(const float* const* rows, const float* const* biases, const float* weights, int count, float scale, const float* residual,
                  Int n, float* out) {
  sixteens(n, [&](Int i, int lanes) __attribute__((always_inline)) {
    Lanes sum = Lanes::set(0.0f);
    for (int j = 0; j < count; ++j) {
      Lanes x = load<Lanes>(rows[j] + i, lanes);
      if (biases) x = x + load<Lanes>(biases[j] + i, lanes);
      sum = weights ? fma(Lanes::set(weights[j]), x, sum) : sum + x;
    }
    if (scale != 1.0f) sum = sum * Lanes::set(scale);
    if (residual) sum = sum + load<Lanes>(residual + i, lanes);
    store(out + i, sum, lanes);
  });
}

}  // namespace
}  // namespace pumice::cpu
