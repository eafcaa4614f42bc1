// Computes the upper triangular factor V of a symmetric positive definite matrix A = V V'.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cancel.h"
#include "quantize/feedback.h"

namespace pumice::quantize {

// Returns V, row-major; its numbers below the diagonal are not defined. Reads only the lower half of `a`, with the diagonal. Throws
// ErrorKind::invalid_argument if `a` is not positive definite.
std::vector<float> upper_factor(const std::vector<float>& a, std::int64_t n, const Parallel& parallel, const Cancel& cancel);

}  // namespace pumice::quantize
