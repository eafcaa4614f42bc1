// Matrices of floats of 4 bits (E2M1) with a scale for each group of columns: NVFP4 and MXFP4. Several libraries write them.
#pragma once

#include <string>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

struct Fp4 {
  std::string module;
  std::string library;                 // that packed it, for messages
  const TensorInfo* codes = nullptr;   // U8 [rows, columns / 2]; the first column of a byte is in its low half
  const TensorInfo* scales = nullptr;  // NVFP4: F8_E4M3 [rows, columns / 16]; MXFP4: exponents [rows, columns / 32], one byte each
  const TensorInfo* factor = nullptr;  // NVFP4: F32, one number for all scales; MXFP4: null
  bool divides = false;                // a scale is its code / factor, not its code * factor
  bool stack = false;                  // the matrices of all experts (PackedFolder::stacks); `module` is its name
};

// Throws unless the tensors have these shapes, and the factor is a finite number that is not 0. The codes and scales of a stack have the
// number of experts in front; it may have a factor for each expert. Its tensors may be turned: [experts, columns / 2, rows] and
// [experts, columns / 16, rows].
void add_fp4_matrix(PackedFolder& folder, const Fp4& fp4);

}  // namespace pumice::files::schemes
