// A matrix whose rows are made while they are read, because the files do not have them in a format of core/formats.def. Either another
// library packed the matrix into several tensors (files/schemes/), or the matrix is in a GGUF format that is converted (gguf_formats.h).
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

  // Writes rows [first, first + count) to `out`, in the format that the tensor's TensorInfo names. `files` are the files of the model.
  // Thread-safe. Throws io. Throws model_format, with the tensor's name and the row, if a file has a number that is not allowed (an
  // infinite scale, for example).
  virtual void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const = 0;

  std::string packing;    // how the weights are packed: "AWQ, 4 bits, groups of 128", "IQ2_XXS"
  std::string not_exact;  // why no format of pumice holds the weights exactly, so that the rows are F32; empty if a format does
};

}  // namespace pumice::files
