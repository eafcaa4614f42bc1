// Reads the headers of GGUF files, versions 2 and 3. The format is described in docs/gguf.md of ggml-org/ggml.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/file.h"
#include "files/metadata.h"
#include "files/tensor_info.h"

namespace pumice::files {

struct GgufHeader {
  std::uint32_t version = 0;
  Metadata::Entries entries;
  std::vector<TensorInfo> tensors;  // TensorInfo::offset counts from the start of the file
};

// Reads everything before the weights. Checks types and ranges, and that each tensor is aligned, lies inside the file and shares no byte
// with another tensor. Sets TensorInfo::file of each tensor to `file_index`.
GgufHeader read_gguf_header(const File& file, std::uint32_t file_index);

}  // namespace pumice::files
