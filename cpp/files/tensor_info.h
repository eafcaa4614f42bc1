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
  // Empty if there are no kernels for the format. This is an error only if the tensor is used.
  std::optional<Format> format;
  std::string format_name;          // the file's name for the format: "Q4_K", "IQ2_XXS", "I64"
  std::vector<std::int64_t> shape;  // in numpy's order, the number of rows first (GGUF files list the dimensions in reverse order)
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;    // index of the tensor's file among the files of the model
  std::uint64_t offset = 0;  // position of the first byte in that file
  // Computes the rows of a tensor that another library packed (files/schemes/) or that is converted from another GGUF format
  // (gguf_formats.h). `format` and `bytes` then describe the computed rows. Null if the file has the rows as they are.
  std::shared_ptr<const MadeTensor> made;
  bool operator==(const TensorInfo&) const = default;
};

}  // namespace pumice::files
