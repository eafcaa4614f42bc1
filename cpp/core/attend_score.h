// Computes the scores of Attend in double, by the formula in core/ops.h. Python's attentions() computes attention weights from these
// scores, and so does the tests' reference backend. Kernels and shaders compute the same formula with the operations in other orders; tests
// compare the results of kernels and shaders with those of the reference backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/ops.h"

namespace pumice {

struct KeyRange {
  std::int64_t first, last;  // positions of the first and the last key of the range
};

// Returns the positions of the keys that the query at position `query` sees. `end` is the position of the text's last key.
inline KeyRange keys_seen(const Attend& a, std::int64_t query, std::int64_t end) {
  if (a.chunk > 0) return {query / a.chunk * a.chunk, query};
  const std::int64_t first = a.window > 0 ? std::max<std::int64_t>(0, query - a.window + (a.causal ? 1 : 0)) : 0;
  if (a.causal) return {first, query};
  return {first, a.window > 0 ? std::min(end, query + a.window) : end};
}

// Computes the scores of one Attend operation. T is the type of the numbers that the pointers point to.
template <class T>
class AttendScore {
 public:
  // `bias`, `slopes` and `places` are the values of the vectors Attend::bias, Attend::slopes and Attend::places. A pointer is null if the
  // operation does not have the vector.
  AttendScore(const Attend& a, const T* bias, const T* slopes, const T* places) : a_(a), bias_(bias), slopes_(slopes), places_(places) {}

  // Returns the score of the key at position `key` for the query at position `query`, in one head. `product` is the dot product of the
  // query and the key. `by_query` is the query's row of the view Attend::by_query, and `by_key` is the key's row of Attend::by_key. Each of
  // these pointers is null if the operation does not have the view.
  double operator()(std::int64_t head, std::int64_t query, std::int64_t key, double product, const T* by_query, const T* by_key) const {
    const std::int64_t bucket = std::clamp<std::int64_t>(key - query, -a_.reach, a_.reach) + a_.reach;
    double score = a_.scale * (product + by_place(head, bucket, by_query, by_key));
    if (a_.softcap > 0) score = a_.softcap * std::tanh(score / a_.softcap);
    if (bias_) score += bias_[head * (2 * a_.reach + 1) + bucket];
    if (slopes_) score -= static_cast<double>(slopes_[head]) * static_cast<double>(std::abs(query - key));
    return score;
  }

 private:
  double by_place(std::int64_t head, std::int64_t bucket, const T* by_query, const T* by_key) const {
    if (!places_) return 0;
    const std::int64_t heads = a_.q.width / a_.key_dim, place = static_cast<std::int64_t>(places_[bucket]);
    double sum = 0;
    if (by_query) sum += by_query[head * (a_.by_query.width / heads) + place];
    if (by_key) sum += by_key[head * (a_.by_key.width / heads) + place];
    return sum;
  }

  const Attend& a_;
  const T *bias_, *slopes_, *places_;
};

}  // namespace pumice
