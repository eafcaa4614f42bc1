#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/formats.h"

namespace pumice::files {

// A tensor as its file describes it. All numbers are checked: the bytes lie inside the file.
struct TensorInfo {
  std::string name;
  std::optional<Format> format;     // empty: the file is sound, but there are no kernels for the format
  std::string format_name;          // as the file has it: "Q4_K", "IQ2_XXS", "I64"
  std::vector<std::int64_t> shape;  // rows first, as in numpy (GGUF lists its dimensions the other way round)
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;    // index of the file in a model of several files
  std::uint64_t offset = 0;  // from the start of that file
  bool operator==(const TensorInfo&) const = default;
};

}  // namespace pumice::files
