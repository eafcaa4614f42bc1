// Reads the headers and indexes of safetensors files. The format is described in the README of huggingface/safetensors, section "Format".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/file.h"
#include "files/tensor_info.h"

namespace pumice::files {

// Returns the tensors of one file in the order of their bytes. Checks that the tensors cover the data from the first to the last byte
// without holes or overlaps, and that each tensor has the number of bytes that its shape and dtype need. Sets TensorInfo::file of each
// tensor to `file_index`.
std::vector<TensorInfo> read_safetensors_header(const File& file, std::uint32_t file_index);

// Reads model.safetensors.index.json. Returns a map from the names of tensors to the file names of their shards.
std::map<std::string, std::string> read_safetensors_index(const File& file);

}  // namespace pumice::files
