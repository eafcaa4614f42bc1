// For each matrix of some programs, finds the norm whose output the matrix multiplies.
#pragma once

#include <span>
#include <vector>

#include "core/program.h"

namespace pumice::cpu {

// The weight and bias of the norm whose output a matrix multiplies. The output is normed * weight + bias. `weight` is VectorId::none if the
// matrix multiplies no output of a norm, or if the norm has no weight.
struct NormBefore {
  VectorId weight = VectorId::none, bias = VectorId::none;
  bool operator==(const NormBefore&) const = default;
};

// Returns the norm before each matrix, indexed by MatrixId. `matrices` is the number of matrices. If layers share a matrix (ALBERT), the
// norm before its last use counts.
std::vector<NormBefore> norms_before(std::span<const Program* const> programs, std::size_t matrices);

}  // namespace pumice::cpu
