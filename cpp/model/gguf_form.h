// Finds out which GGUF tensors llama.cpp's converter makes from a folder's tensors: their names, and the order of their rows. The family's
// list of tensor names has the names. The order of rows may differ between the two kinds of files in tensors that several roles share
// (Fused).
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

// A tensor of the GGUF file, and the steps that make it from a tensor of the folder. The fields are in the order of the steps. If the
// tensor has the matrices of a layer's experts, the steps are done for each matrix separately.
struct GgufPart {
  std::string name;
  bool taps = false;        // true: the shape [rows, 1, taps] becomes [rows, taps]
  bool transposed = false;  // true: the folder's tensor is transposed, because it has one row per input
  // Number of rows that the tensor must have after the steps above; 0: any number.
  std::int64_t whole = 0;
  std::vector<std::int64_t> rows;     // the folder's row for each row of the GGUF tensor; empty: all rows in the same order
  std::vector<std::int64_t> columns;  // the folder's column for each column of the GGUF tensor; empty: all columns in the same order
  std::int64_t matrices = 0;          // number of matrices in the tensor, one below the other; 0: the tensor is a single matrix
  bool turned = false;                // true: each of these matrices is transposed
  // If positive, the folder's vector becomes a matrix with this many columns. If 0, the folder's tensor becomes a vector, even if it is a
  // matrix with one row. If empty, the number of dimensions stays.
  std::optional<std::int64_t> width;
  bool pairs = false;  // true: rows are reordered for a rope that rotates neighbouring columns
  // Lists of factors. The rows are multiplied by one list after the other. A list has one number for all rows, or one number per row.
  std::vector<std::vector<float>> factors;
  bool normalised = false;  // true: each column is divided by its L2 norm
  bool plus_one = false;    // true: 1 is added, because the folder stores w - 1 for a norm's weight w
  bool minus_exp = false;   // true: each value x becomes -exp(x), because the folder stores log(-w) for a weight w
};

// Returns a map from the name of each tensor in the folder to the GGUF tensors that are made from it. If each of a layer's experts has a
// tensor of its own, only the first expert's tensor has an entry. A tensor without an entry cannot be stored in GGUF files of the family.
std::map<std::string, std::vector<GgufPart>> gguf_parts(const files::ModelFile& folder);

// The metadata of the GGUF file that convert() makes from a folder. `folded` names fields of Config that this file lacks, because tensors
// are multiplied by the values of these fields.
struct GgufHead {
  // `architecture` is the value of general.architecture; empty if llama.cpp has none for this model.
  std::string family, architecture;
  std::map<std::string, files::Value, std::less<>> keys;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<std::string> folded;
  bool generates = false;  // true: the model has a head (Config::has_head)
};
GgufHead gguf_head(const files::ModelFile& folder);

}  // namespace pumice::model
