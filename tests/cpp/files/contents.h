// Loads a file of arbitrary bytes and returns all the contents of a file that loads.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "files/model_file.h"

namespace pumice::files::testing {

struct Contents {
  // All maps are by the name of the key or tensor.
  std::map<std::string, std::string> metadata;  // the value as text
  std::map<std::string, std::string> tensors;   // format, shape and size as text
  std::map<std::string, std::string> data;      // the tensor's bytes
};

Contents contents(const ModelFile& model);
// Returns the contents of the file, or nothing if the file is refused. If it is refused with anything but a proper Error, sets `unsound` to
// a description of the exception.
std::optional<Contents> load(const std::string& path, std::string* unsound);
std::optional<Contents> load_weights(const std::string& path, std::string* unsound);  // the same for ModelFile::open_weights()
// The same for a file of save_prefix(). Its pages and its state are the `data`.
std::optional<Contents> load_prefix(const std::string& path, std::string* unsound);

}  // namespace pumice::files::testing
