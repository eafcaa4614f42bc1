// Functions that read a matrix's rows from a file: parts of a tensor, plain or transposed, and rows that are changed while they are read.
#pragma once

#include <functional>
#include <memory>

#include "core/weights.h"
#include "files/model_file.h"
#include "model/low_rank.h"
#include "model/tensor_names.h"

namespace pumice::model {

using ReadRows = decltype(Matrix::read);

// Returns a function that reads the rows `part` of a tensor of `cols` columns.
ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// The same from a tensor that is stored transposed. Throws unsupported_model for a format in blocks.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
ReadRows read_floats(std::vector<float> values, std::int64_t cols);  // from values in memory, as F32

// Makes `matrix` unpack its rows to floats, apply `change` to them and pack them in format `to` when they are read.
void repack(Matrix& matrix, Format to, AddRow change = {});

// Returns a matrix of one F32 row: the first row of `rows` minus the second.
Matrix difference_of_rows(const Matrix& rows);

std::function<void(std::int64_t first, std::int64_t count, float* out)> floats_of(const Matrix& matrix);

}  // namespace pumice::model
