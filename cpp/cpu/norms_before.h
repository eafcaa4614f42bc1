// Finds, in programs, the norm whose output a matrix multiplies.
#pragma once

#include <span>
#include <vector>

#include "core/program.h"

namespace pumice::cpu {

// The weight and bias of a norm x = normed * weight + bias. Without a weight, x does not come from a norm, or the norm has no weight.
struct NormBefore {
  VectorId weight = VectorId::none, bias = VectorId::none;
  bool operator==(const NormBefore&) const = default;
};

// Returns the norm before each matrix, by MatrixId. `matrices` is the number of matrices. If layers share a matrix (ALBERT), the last norm
// counts.
std::vector<NormBefore> norms_before(std::span<const Program* const> programs, std::size_t matrices);

}  // namespace pumice::cpu
