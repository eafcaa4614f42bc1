// Matrices of floats of 8 bits (F8_E4M3) with a scale for each block. Several libraries write them.
#pragma once

#include <cstdint>
#include <string>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

struct Fp8 {
  std::string module;
  std::string library;                          // that packed it, for messages
  const TensorInfo* weight = nullptr;           // F8_E4M3 [rows, columns]
  const TensorInfo* scales = nullptr;           // a weight is scale * value
  std::int64_t block_rows = 0, block_cols = 0;  // of a block, which may be partial at the end of rows and columns; 0: all of them
  bool powers_of_two = false;                   // the scales
};

// Throws unless the weight is a matrix of F8_E4M3, and the scales are one for each block: [row blocks, column blocks]. One number, [], [1]
// or [rows] may have these shapes too.
void add_fp8_matrix(PackedFolder& folder, const Fp8& fp8);

}  // namespace pumice::files::schemes
