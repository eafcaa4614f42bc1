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
  std::string library;                          // the library that packed the matrix, for messages
  const TensorInfo* weight = nullptr;           // F8_E4M3 [rows, columns]
  const TensorInfo* scales = nullptr;           // a weight is scale * value
  std::int64_t block_rows = 0, block_cols = 0;  // numbers of rows and columns in a block; 0 stands for all. The last blocks may be smaller
  bool powers_of_two = false;                   // true if all scales are known to be powers of two
};

// Adds a matrix to the folder. Throws unless the weight is a matrix of F8_E4M3 with one scale for each block: [row blocks, column blocks].
// A single scale may also have the shape [] or [1], and scales of whole rows the shape [rows].
void add_fp8_matrix(PackedFolder& folder, const Fp8& fp8);

// The names that a library gives to the tensors of a matrix other than its weight.
struct Fp8Library {
  const char* name;
  std::vector<std::string_view> scales;  // the possible names of the scales; a matrix has one of these tensors
  std::vector<std::string_view> unused;  // names of the scales of activations, which are not used
};

// Adds a matrix with one scale, or with one scale for each row. The shape of the scales says which.
void add_fp8_module(PackedFolder& folder, const std::string& module, const Fp8Library& library);
// Adds a stack (PackedFolder::stacks), whose tensors are STACK and STACK_ + library.scales[0]. The stack is transposed, as in the classes
// of Llama 4 and gpt-oss: F8_E4M3 [experts, columns, rows]. The scales are F32: one for all, or one for each expert, or one for each row of
// each expert.
void add_fp8_stack(PackedFolder& folder, const std::string& stack, const Fp8Library& library);

}  // namespace pumice::files::schemes
