// safetensors: huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/file.h"
#include "files/tensor_info.h"

namespace pumice::files {

// The tensors of one file in the order of their bytes, checked: the data is covered from first to last byte, without holes or
// overlaps, and each shape has the bytes that its dtype asks for. `file_index` is put into the tensors.
std::vector<TensorInfo> read_safetensors_header(const File& file, std::uint32_t file_index);

// model.safetensors.index.json: which shard holds which tensor.
std::map<std::string, std::string> read_safetensors_index(const File& file);

}  // namespace pumice::files
