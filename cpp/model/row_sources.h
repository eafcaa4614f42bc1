// Functions that read a matrix's rows from a file: a part of a tensor, plain or transposed, and rows that are changed while they are read.
#pragma once

#include <functional>
#include <memory>

#include "core/weights.h"
#include "files/model_file.h"
#include "model/low_rank.h"
#include "model/tensor_names.h"

namespace pumice::model {

using ReadRows = decltype(Matrix::read);

// Returns a function that reads the rows `part` of a tensor with `cols` columns.
ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns such a function for a tensor that is stored transposed. Throws ErrorKind::unsupported_model if its format packs weights in
// blocks.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// Returns a function that reads rows of F32 from values in memory.
ReadRows read_floats(std::vector<float> values, std::int64_t cols);

// Changes how `matrix` is read: its rows are unpacked to floats, changed by `change` (if it is not empty) and packed in format `to`.
void repack(Matrix& matrix, Format to, AddRow change = {});

// Returns a matrix of one F32 row: the first row of `rows` minus the second.
Matrix difference_of_rows(const Matrix& rows);

// Returns a function that reads rows of `matrix` and unpacks them to floats.
std::function<void(std::int64_t first, std::int64_t count, float* out)> floats_of(const Matrix& matrix);

}  // namespace pumice::model
