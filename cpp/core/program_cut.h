// Cuts a program into parts that different devices can run.
#pragma once

#include <functional>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"

namespace pumice {

struct ProgramPart {
  Program program;
  bool apart = false;  // true if the callback `apart` of cut_program() returned true for the part's operations
};

// Cuts a program before and after each run of operations for which `apart` returns true. The output rows of a part are the input rows of
// the next part and hold the columns that later operations read. Running the parts in order therefore computes the same results as the
// whole program. Each part has its own caches and states. If `apart` returns false for all operations, the result is one part.
//
// Throws unsupported_model if rows that are not rows of tokens would cross a cut, or if two parts would need the same cache or state.
std::vector<ProgramPart> cut_program(const Program& program, const WeightShapes& weights, const std::function<bool(const Op&)>& apart);

}  // namespace pumice
