#include "model/tensor_errors.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "model/nearest.h"

namespace pumice::model {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

void require_format(const files::ModelFile& file, const files::TensorInfo& tensor) {
  if (tensor.format) return;
  throw Error(ErrorKind::unsupported_model,
              str(file.path(), ": tensor ", tensor.name, " is in format ", tensor.format_name, ", which this version does not run"))
      .in_file(file.path())
      .at_field(tensor.name);
}

void wrong_shape(const files::ModelFile& file, const files::TensorInfo& tensor, const std::string& needed) {
  throw Error(ErrorKind::model_format, str(file.path(), ": tensor ", tensor.name, " has shape ", shape_text(tensor.shape), "; ",
                                           "the model's configuration needs ", needed))
      .in_file(file.path())
      .at_field(tensor.name);
}

void missing(const files::ModelFile& file, const std::string& name) {
  std::vector<std::string> names;
  for (const files::TensorInfo& tensor : file.tensors().first(std::min<std::size_t>(file.tensors().size(), kNamesCompared)))
    names.push_back(tensor.name);
  const std::string_view near = nearest(name, names);
  throw Error(ErrorKind::model_format, str(file.path(), ": tensor ", name, " is missing",
                                           near.empty() ? std::string(" (the file has no tensors)") : str("; the nearest name is ", near)))
      .in_file(file.path())
      .at_field(name);
}

}  // namespace pumice::model
