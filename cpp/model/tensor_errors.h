// Errors about tensors: they name the file, the tensor, what was found and what is needed.
#pragma once

#include <string>

#include "files/model_file.h"

namespace pumice::model {

// Throws unsupported_model for a format that no kernel reads.
void require_format(const files::ModelFile& file, const files::TensorInfo& tensor);
[[noreturn]] void wrong_shape(const files::ModelFile& file, const files::TensorInfo& tensor, const std::string& needed);
// Throws model_format, and names the nearest tensor in the file.
[[noreturn]] void missing(const files::ModelFile& file, const std::string& name);

}  // namespace pumice::model
