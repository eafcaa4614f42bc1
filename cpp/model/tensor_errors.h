// Functions that throw errors about tensors. The messages have the file, the tensor, what was found and what is needed.
#pragma once

#include <string>

#include "files/model_file.h"

namespace pumice::model {

// Throws ErrorKind::unsupported_model if the tensor's format is one that pumice does not know.
void require_format(const files::ModelFile& file, const files::TensorInfo& tensor);
[[noreturn]] void wrong_shape(const files::ModelFile& file, const files::TensorInfo& tensor, const std::string& needed);
// Throws ErrorKind::model_format. The message has `name` and the most similar tensor name that the file has.
[[noreturn]] void missing(const files::ModelFile& file, const std::string& name);

}  // namespace pumice::model
