// The attention weights of each token: the softmax of attention's scores, computed on the host from the queries and keys of one layer.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/ops.h"
#include "core/weights.h"

namespace pumice::engine {

// Computes the weights of `attend`. Its views q, k, by_query and by_key are columns of `rows`, which has one row of `width` floats per
// token. `out` has the shape heads x tokens x tokens. Everything is computed in double and rounded once. The workers of `host` share the
// heads and queries among themselves.
void attention_weights(const Attend& attend, const Weights& weights, std::span<const float> rows, std::int64_t width, Backend& host,
                       std::span<float> out, const Cancel& cancel);

}  // namespace pumice::engine
