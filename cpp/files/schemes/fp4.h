// Matrices of floats of 4 bits (E2M1) with a scale for each group of columns: NVFP4 and MXFP4. Several libraries write them.
#pragma once

#include <string>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

struct Fp4 {
  std::string module;
  std::string library;                 // the library that packed the matrix, for messages
  const TensorInfo* codes = nullptr;   // U8 [rows, columns / 2]; the low half of byte j has column 2 j, the high half column 2 j + 1
  const TensorInfo* scales = nullptr;  // NVFP4: F8_E4M3 [rows, columns / 16]; MXFP4: exponents [rows, columns / 32], one byte each
  const TensorInfo* factor = nullptr;  // NVFP4: F32, one number for all scales; MXFP4: null
  bool divides = false;                // true if a scale is F8_E4M3 value / factor, false if it is F8_E4M3 value * factor
  bool stack = false;                  // true for the matrices of all experts (PackedFolder::stacks); `module` is then the stack's name
};

// Adds a matrix or a stack to the folder. Throws unless the tensors have these shapes, and the factor is a finite number that is not 0. The
// codes and scales of a stack have the number of experts as an additional first dimension, and there may be a factor for each expert. A
// stack may be transposed: codes [experts, columns / 2, rows] and scales [experts, columns / 16, rows].
void add_fp4_matrix(PackedFolder& folder, const Fp4& fp4);

}  // namespace pumice::files::schemes
