// The check of the CPU that doctor() runs. It compares the chosen instruction set with the scalar one, kernel by kernel.
#pragma once

#include <string>
#include <vector>

namespace pumice::cpu {

struct Check {
  std::string name;  // "linear Q4_K, int8 activations"
  double error = 0;  // normalised mean squared error against the scalar kernel
  double limit = 0;
  bool ok() const { return error <= limit; }  // false for NaN
};

std::vector<Check> self_test();  // takes some milliseconds

}  // namespace pumice::cpu
