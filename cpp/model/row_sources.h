// Functions that read the rows of a matrix from a file. The rows may be a part of a tensor, they may be stored transposed, and they may be
// changed while they are read.
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

// Returns a function that reads the rows `part` of a tensor. The tensor has `cols` columns.
ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns a function that reads the rows `part` of a matrix whose tensor is stored transposed, [columns, rows]. Throws
// ErrorKind::unsupported_model if the tensor's format packs weights in blocks.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns a function that reads the rows `part` of a stack whose matrices are stored transposed, [experts, columns, rows] or [experts *
// columns, rows]. Throws as read_transposed() does. A row of an expert's matrix is spread over the whole matrix in the file, so `slices`
// caches whole matrices.
ReadRows read_transposed_experts(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                                 std::int64_t cols, std::shared_ptr<files::Slices> slices);
// Returns a function that reads rows of a stack with one matrix per head. The tensor has the transposed matrices, one after another. A run
// of `part` has the tensor's rows for one head. These rows are the columns of the head's matrix, so the matrix has part.run columns. The
// rows returned are in format F32 if the tensor's format packs weights in blocks, and otherwise in the tensor's format.
ReadRows read_transposed_heads(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part,
                               std::shared_ptr<files::Slices> slices);
// Returns a function that reads rows of MXFP4 from a tensor of codes, [experts, rows, blocks, 16], and a tensor of scales, [experts, rows,
// blocks]. A byte of codes holds two neighbouring columns, the first column in its low half (gpt-oss). The rows returned have the layout of
// MXFP4 in GGUF, where byte i of a block holds columns i and i + 16, and the scale precedes the codes. The values of codes and scales are
// the same in both layouts.
ReadRows read_mxfp4(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& codes, const files::TensorInfo& scales,
                    Part part, std::int64_t cols);
// Returns a function that reads the rows of several matrices, one matrix after another. Each matrix has `rows` rows of `bytes` bytes.
ReadRows read_each(std::vector<ReadRows> matrices, std::int64_t rows, std::int64_t bytes);
// Returns a function that reads rows of F32 from values in memory.
ReadRows read_floats(std::vector<float> values, std::int64_t cols);

// Changes how `matrix` is read. Its rows are unpacked to floats, changed by `change` (unless that is empty), and packed in format `to`.
void repack(Matrix& matrix, Format to, AddRow change = {});

// Changes how `matrix` is read. Each column is divided by (its length + `floor`), and the rows are then packed in format `to`. The length
// of a column is the square root of the sum of its squared weights. Matrix::prepare reads all rows to compute the lengths.
void divide_by_lengths_of_columns(Matrix& matrix, Format to, float floor);

// Returns a matrix of one F32 row: the first row of `rows` minus the second.
Matrix difference_of_rows(const Matrix& rows);

// Returns a function that reads rows of `matrix` and unpacks them to floats.
std::function<void(std::int64_t first, std::int64_t count, float* out)> floats_of(const Matrix& matrix);

}  // namespace pumice::model
