// Functions that read a matrix's rows from a file: a part of a tensor, plain or transposed, and rows that are changed while they are read.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/weights.h"
#include "files/model_file.h"
#include "files/slices.h"
#include "model/low_rank.h"
#include "model/tensor_names.h"

namespace pumice::model {

using ReadRows = decltype(Matrix::read);

// Returns a function that reads the rows `part` of a tensor with `cols` columns.
ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns such a function for a tensor that is stored transposed, [columns, rows]. Throws
// ErrorKind::unsupported_model if its format packs weights in blocks.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns a function that reads the rows `part` of a tensor [experts, columns, rows] or [experts * columns, rows]. Throws as
// read_transposed() does. A row of an expert's matrix is spread over all of its bytes, so `slices` keeps whole matrices.
ReadRows read_transposed_experts(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                                 std::int64_t cols, std::shared_ptr<files::Slices> slices);
// Returns a function that reads rows of one matrix for each head from a tensor that has these matrices transposed, one after another. In
// the tensor, the rows of head h are the runs of `part`; each is a column of the head's matrix, which has part.run columns. If the tensor's
// format packs weights in blocks, the rows are in format F32, and otherwise in the tensor's format.
ReadRows read_transposed_heads(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                               std::shared_ptr<files::Slices> slices);
// Returns a function that reads rows of MXFP4 from a tensor of codes, [experts, rows, blocks, 16], and a tensor of scales, [experts, rows,
// blocks]. A byte of codes has two neighbouring columns, the first in its low half (gpt-oss). In GGUF's MXFP4, byte i of a block has
// columns i and i + 16, and the scale comes before the codes. Codes and scales mean the same in both.
ReadRows read_mxfp4(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& codes, const files::TensorInfo& scales,
                    Part part, std::int64_t cols);
// Returns a function that reads the rows of several matrices, which have `rows` rows of `bytes` bytes each, one after another.
ReadRows read_each(std::vector<ReadRows> matrices, std::int64_t rows, std::int64_t bytes);
// Returns a function that reads rows of F32 from values in memory.
ReadRows read_floats(std::vector<float> values, std::int64_t cols);

// Changes how `matrix` is read: its rows are unpacked to floats, changed by `change` (if it is not empty) and packed in format `to`.
void repack(Matrix& matrix, Format to, AddRow change = {});

// Changes how `matrix` is read: each column is divided by its length, which is the root of the sum of the squares of its weights, plus
// `floor`. The rows are packed in format `to`. Matrix::prepare reads all rows to compute the lengths.
void divide_by_lengths_of_columns(Matrix& matrix, Format to, float floor);

// Returns a matrix of one F32 row: the first row of `rows` minus the second.
Matrix difference_of_rows(const Matrix& rows);

// Returns a function that reads rows of `matrix` and unpacks them to floats.
std::function<void(std::int64_t first, std::int64_t count, float* out)> floats_of(const Matrix& matrix);

}  // namespace pumice::model
