// Finds out which tensors llama.cpp's converter writes to a GGUF file for a folder's tensors: their names, and the order of their rows.
// Both follow from the family's tensor names, and from the order of rows in tensors that several roles share (Fused), which differs between
// the two kinds of files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "files/model_file.h"
#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// Describes a tensor of the GGUF file, and how it is computed from a tensor of the folder. The steps are done in the order of the fields.
// If the tensor has the matrices of a layer's experts, each matrix is changed separately, as if it were a tensor of its own.
struct GgufPart {
  std::string name;
  bool taps = false;                  // the shape [rows, 1, taps] becomes [rows, taps]
  bool transposed = false;            // the folder's tensor has one row per input, and is transposed
  std::int64_t whole = 0;             // number of rows that the tensor must have after the steps above; 0: any number
  std::vector<std::int64_t> rows;     // the folder's row for each row of the GGUF tensor; empty: all rows in the same order
  std::vector<std::int64_t> columns;  // the folder's column for each column of the GGUF tensor; empty: all columns in the same order
  std::int64_t matrices = 0;          // number of matrices whose rows follow one another in the tensor; 0: the tensor is a single matrix
  bool turned = false;                // each of these matrices is transposed
  // If this is a positive number, the folder's vector becomes a matrix with this many columns. If it is 0, the folder's tensor becomes a
  // vector, also if it is a matrix of one row. If it is empty, the number of dimensions stays.
  std::optional<std::int64_t> width;
  bool pairs = false;  // rows are reordered for a rope that rotates neighbouring columns
  // Rows are multiplied by each of these lists in turn. A list has one number for all rows, or one number per row.
  std::vector<std::vector<float>> factors;
  bool normalised = false;  // each column is divided by its length (L2 norm)
  bool plus_one = false;    // 1 is added, because the folder stores w - 1 for a norm's weight w
  bool minus_exp = false;   // each value x becomes -exp(x), because the folder stores log(-w)
};

// Returns, for the name of each tensor of the folder, the tensors of the GGUF file that are made from it. If each of a layer's experts has
// a tensor of its own, only the first expert's tensor has an entry. A tensor without an entry cannot be stored in GGUF files of the family.
std::map<std::string, std::vector<GgufPart>> gguf_parts(const files::ModelFile& folder);

// The metadata of the GGUF file, and the fields of Config that are no longer in it because its tensors were multiplied by them.
struct GgufHead {
  std::string family, architecture;  // architecture: value of general.architecture; empty: llama.cpp has none for this model
  std::map<std::string, files::Value, std::less<>> keys;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<std::string> folded;
  bool generates = false;  // the model has a head (Config::has_head)
};
GgufHead gguf_head(const files::ModelFile& folder);

}  // namespace pumice::model
