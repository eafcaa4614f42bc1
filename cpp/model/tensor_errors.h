// What a model's tensors must be: errors that name file, tensor, what was found and what is needed.
#pragma once

#include <string>

#include "files/model_file.h"

namespace pumice::model {

// Throws unsupported_model where its format is not computed with.
void require_format(const files::ModelFile& file, const files::TensorInfo& tensor);
[[noreturn]] void wrong_shape(const files::ModelFile& file, const files::TensorInfo& tensor, const std::string& needed);
// Names the nearest tensor that there is.
[[noreturn]] void missing(const files::ModelFile& file, const std::string& name);

}  // namespace pumice::model
