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
  std::optional<Format> format;     // empty if there are no kernels for the format, which is no error if the tensor is not used
  std::string format_name;          // the file's name for the format: "Q4_K", "IQ2_XXS", "I64"
  std::vector<std::int64_t> shape;  // in numpy's order, the number of rows first (GGUF files list the dimensions in reverse order)
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;    // index of the tensor's file among the files of the model
  std::uint64_t offset = 0;  // position of the first byte in that file
  // Makes the rows, if another library packed them (files/schemes/) or if they are converted from another format of GGUF (gguf_formats.h).
  // `format` and `bytes` are then those of the made rows. Null if the file has the rows as they are.
  std::shared_ptr<const MadeTensor> made;
  bool operator==(const TensorInfo&) const = default;
};

}  // namespace pumice::files
