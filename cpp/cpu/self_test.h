// The check of the CPU that doctor() runs. The check compares each kernel of the chosen instruction set with the scalar kernel.
#pragma once

#include <string>
#include <vector>

namespace pumice::cpu {

struct Check {
  std::string name;  // for example "linear Q4_K, int8 activations"
  double error = 0;  // normalised mean squared error relative to the scalar kernel's result
  double limit = 0;
  bool ok() const { return error <= limit; }  // false for NaN
};

std::vector<Check> self_test();  // takes some milliseconds

}  // namespace pumice::cpu
