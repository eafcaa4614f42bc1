// What each token of a text looks at: the softmax of attention's scores, computed on the host from queries and keys of a layer.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/ops.h"
#include "core/weights.h"

namespace pumice::engine {

// The scores are those of `attend`, whose views q, k, by_query and by_key are columns of `rows`: one row of `width` floats for each token.
// `out`: heads x tokens x tokens. Everything is computed in double and rounded once. Heads and queries are shared among the workers of
// `host`.
void attention_weights(const Attend& attend, const Weights& weights, std::span<const float> rows, std::int64_t width, Backend& host,
                       std::span<float> out, const Cancel& cancel);

}  // namespace pumice::engine
