// What a folder's tensors become in the GGUF file that llama.cpp's converter writes from it: their names, and the order of their rows. Both
// follow from the names of the family and from the layouts that tensors of several roles have in the two kinds of files.
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

// A tensor of the GGUF file, and how it is made of a tensor of the folder. The steps are taken in the order of the fields. The matrices of
// a layer's experts are changed one by one, as if each were a tensor of its own.
struct GgufPart {
  std::string name;
  bool taps = false;                  // [rows, 1, taps] becomes [rows, taps]
  bool transposed = false;            // the tensor has one row per input
  std::int64_t whole = 0;             // number of rows that the tensor must have then; 0: any
  std::vector<std::int64_t> rows;     // the rows that the file has, in its order; empty: all, as they are
  std::vector<std::int64_t> columns;  // the same of columns
  std::int64_t matrices = 0;          // the rows are those of so many matrices, one after another; 0: of one
  bool turned = false;                // these matrices are transposed
  // A vector that the file has as a matrix with so many columns. 0: the folder may have a matrix of one row, and the file has a vector.
  std::optional<std::int64_t> width;
  bool pairs = false;  // rows are in the order of a rope that turns neighbouring columns; the folder's are not
  // By which the rows are multiplied, one list after another. A list has one number for all rows, or one for each.
  std::vector<std::vector<float>> factors;
  bool normalised = false;  // each column is divided by its length
  bool plus_one = false;    // the folder stores w - 1 for a norm's weight w
  bool minus_exp = false;   // the folder stores log(-w)
};

// Returns the tensors of the GGUF file that each tensor of a folder becomes, by its name. Of the matrices of a layer's experts, only the
// first one has an entry. A tensor without an entry has no place in GGUF files of the family.
std::map<std::string, std::vector<GgufPart>> gguf_parts(const files::ModelFile& folder);

// What the GGUF file says about the model, and which fields of Config its tensors have taken over.
struct GgufHead {
  std::string family, architecture;  // architecture: general.architecture; empty: llama.cpp has none for this model
  std::map<std::string, files::Value, std::less<>> keys;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<std::string> folded;
  bool generates = false;  // the family has a head
};
GgufHead gguf_head(const files::ModelFile& folder);

}  // namespace pumice::model
