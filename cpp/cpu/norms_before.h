// Which norm makes what a matrix multiplies, as programs show it.
#pragma once

#include <span>
#include <vector>

#include "core/program.h"

namespace pumice::cpu {

// Of x = normed * weight + bias. No weight: the rows come from something else, or the norm has none.
struct NormBefore {
  VectorId weight = VectorId::none, bias = VectorId::none;
  bool operator==(const NormBefore&) const = default;
};

// By MatrixId, of `matrices` matrices. Layers may share one (ALBERT): the last norm counts.
std::vector<NormBefore> norms_before(std::span<const Program* const> programs, std::size_t matrices);

}  // namespace pumice::cpu
