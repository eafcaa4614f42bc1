// Computes attention weights, which are the softmax of the attention scores, on the host from the queries and keys of one layer.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/ops.h"
#include "core/weights.h"

namespace pumice::engine {

// Computes the attention weights of the operation `attend`, whose vectors (bias, sinks, ...) are in `weights`. The views q, k, by_query and
// by_key of `attend` are columns of `rows`, which has one row of `width` floats per token. `out` gets one weight per head, query and key,
// in the shape heads x tokens x tokens. Everything is computed in double precision, and only the results are rounded to float. The workers
// of `host` share the work.
void attention_weights(const Attend& attend, const Weights& weights, std::span<const float> rows, std::int64_t width, Backend& host,
                       std::span<float> out, const Cancel& cancel);

}  // namespace pumice::engine
