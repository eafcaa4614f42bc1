// safetensors: huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/file.h"
#include "files/tensor_info.h"

namespace pumice::files {

// The tensors of one file in the order of their bytes. Checks that they cover the data from first to last byte without holes or overlaps,
// and that each shape and dtype has the right number of bytes. Tensors get `file_index`.
std::vector<TensorInfo> read_safetensors_header(const File& file, std::uint32_t file_index);

// Reads model.safetensors.index.json: the shard of each tensor.
std::map<std::string, std::string> read_safetensors_index(const File& file);

}  // namespace pumice::files
