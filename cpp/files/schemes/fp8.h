// Matrices of floats of 8 bits (F8_E4M3) with a scale for each block. Several libraries write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {

struct Fp8 {
  std::string module;
  std::string library;                          // the library that packed the matrix; for texts of errors
  const TensorInfo* weight = nullptr;           // F8_E4M3 [rows, columns]
  const TensorInfo* scales = nullptr;           // a weight is scale * value
  std::int64_t block_rows = 0, block_cols = 0;  // of a block, which may be partial at the end of rows and columns; 0: all of them
  bool powers_of_two = false;                   // the scales
};

// Throws unless the weight is a matrix of F8_E4M3, and the scales are one for each block: [row blocks, column blocks]. One number, [], [1]
// or [rows] may have these shapes too.
void add_fp8_matrix(PackedFolder& folder, const Fp8& fp8);

// What a library calls the tensors of a matrix, beside its weight.
struct Fp8Library {
  const char* name;
  std::vector<std::string_view> scales;  // one of these is there
  std::vector<std::string_view> unused;  // scales of activations
};

// Adds a matrix with one scale, or with one for each row, as the shape of the scales says.
void add_fp8_module(PackedFolder& folder, const std::string& module, const Fp8Library& library);
// Adds a stack (PackedFolder::stacks), whose tensors are STACK and STACK_scales. It is turned, as the classes of Llama 4 and gpt-oss have
// stacks: F8_E4M3 [experts, columns, rows]. The scales are F32: one, or one for each expert, or one for each row of each expert.
void add_fp8_stack(PackedFolder& folder, const std::string& stack, const Fp8Library& library);

}  // namespace pumice::files::schemes
