// Loading a file that may be anything, and everything that a loaded file shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "files/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace pumice::files::testing {

struct Contents {
  std::map<std::string, std::string> metadata;  // values as text
  std::map<std::string, std::string> tensors;   // format, shape and size as text
  std::map<std::string, std::string> data;      // bytes of the tensors
};

Contents contents(const ModelFile& model);
// The contents of the file, or nothing when it is refused. `unsound` gets a text when the refusal is not a proper Error.
std::optional<Contents> load(const std::string& path, std::string* unsound);

}  // namespace pumice::files::testing
