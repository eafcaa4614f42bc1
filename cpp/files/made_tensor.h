// A matrix that no file has as it is: another library packed it, and its rows are made from several tensors while they are read, or its
// format is read as another one (gguf_formats.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "files/file.h"

namespace pumice::files {

class MadeTensor {
 public:
  MadeTensor() = default;
  MadeTensor(const MadeTensor&) = delete;
  MadeTensor& operator=(const MadeTensor&) = delete;
  virtual ~MadeTensor() = default;

  // Writes rows [first, first + count), in the format of the TensorInfo, to `out`. `files` are those of the model. Thread-safe. Throws io,
  // and model_format with the names of tensor and row if a number of the file cannot be.
  virtual void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const = 0;

  std::string packing;    // how the weights are packed: "AWQ, 4 bits, groups of 128", "IQ2_XXS"
  std::string not_exact;  // why no format of pumice holds the weights exactly, so that they are F32; empty if one does
};

}  // namespace pumice::files
