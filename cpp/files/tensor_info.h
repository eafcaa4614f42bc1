#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/formats.h"

namespace pumice::files {

class MadeTensor;

// A tensor as its file describes it. All numbers have been checked, so the bytes lie inside the file.
struct TensorInfo {
  std::string name;
  std::optional<Format> format;     // empty if there are no kernels for the format; the file is sound all the same
  std::string format_name;          // the file's name for the format: "Q4_K", "IQ2_XXS", "I64"
  std::vector<std::int64_t> shape;  // in numpy's order, the number of rows first (GGUF files list the dimensions in reverse order)
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;    // index of the file in a model of several files
  std::uint64_t offset = 0;  // from the start of that file
  // Makes the rows, if the files have them only as another library packed them (files/schemes/), or in a format that is read as another one
  // (gguf_formats.h); else null. `format` and `bytes` are those of the rows.
  std::shared_ptr<const MadeTensor> made;
  bool operator==(const TensorInfo&) const = default;
};

}  // namespace pumice::files
