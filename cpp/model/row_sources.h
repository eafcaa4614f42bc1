// Where a matrix's rows come from while it is read: parts of a tensor as they are or turned, and rows that are changed on their way.
#pragma once

#include <functional>
#include <memory>

#include "core/weights.h"
#include "files/model_file.h"
#include "model/low_rank.h"
#include "model/tensor_names.h"

namespace pumice::model {

using ReadRows = decltype(Matrix::read);

// Rows of a tensor of `cols` columns.
ReadRows read_rows(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
// The same from a tensor that is stored transposed. Throws unsupported_model for a format in blocks.
ReadRows read_transposed(std::shared_ptr<const files::ModelFile> file, const files::TensorInfo& tensor, Part part, std::int64_t cols);
ReadRows read_floats(std::vector<float> values, std::int64_t cols);  // from values in memory, as F32

// Rows are read as floats, changed by `change`, and packed in format `to`. `matrix` keeps its name and shape.
void repack(Matrix& matrix, Format to, AddRow change = {});

// One row in F32: the first row of `rows` less the second.
Matrix difference_of_rows(const Matrix& rows);

std::function<void(std::int64_t first, std::int64_t count, float* out)> floats_of(const Matrix& matrix);

}  // namespace pumice::model
