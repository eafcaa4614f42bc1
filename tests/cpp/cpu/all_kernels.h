// The kernels of all instruction sets that the tests of kernels must cover.
#pragma once

#include <cstdio>
#include <vector>

#include "cpu/emulated/kernels.h"
#include "cpu/kernels.h"

namespace pumice::cpu {

// Returns the kernels that this machine can run, scalar first. Prints once which kernels it cannot run.
inline const std::vector<const Kernels*>& native_kernels() {
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> found;
    for (const char* isa : known_isas()) {
      if (const Kernels* kernels = kernels_for(isa))
        found.push_back(kernels);
      else
        std::printf("not run here: %s\n", isa);
    }
    return found;
  }();
  return all;
}

// Returns native_kernels() and, after them, the emulated matrix kernels of AVX-512.
inline const std::vector<const Kernels*>& all_kernels() {
  static const Kernels emulated = {"avx512_bf16 emulated", kMatrixEmulated, kRowsScalar};
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> found = native_kernels();
    found.push_back(&emulated);
    return found;
  }();
  return all;
}

}  // namespace pumice::cpu
