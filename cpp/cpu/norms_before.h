// Finds, in programs, the norm whose output a matrix multiplies.
#pragma once

#include <span>
#include <vector>

#include "core/program.h"

namespace pumice::cpu {

// The weight and bias of a norm, whose output is x = normed * weight + bias. `weight` is VectorId::none if x is not the output of a norm or
// if the norm has no weight.
struct NormBefore {
  VectorId weight = VectorId::none, bias = VectorId::none;
  bool operator==(const NormBefore&) const = default;
};

// Returns the norm before each matrix, by MatrixId. `matrices` is the number of matrices. If layers share a matrix (ALBERT), the last norm
// counts.
std::vector<NormBefore> norms_before(std::span<const Program* const> programs, std::size_t matrices);

}  // namespace pumice::cpu
