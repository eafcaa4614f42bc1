// The GGUF formats that are not formats of core/formats.def: some are read as another format, which holds the same weights exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/formats.h"
#include "files/made_tensor.h"
#include "files/tensor_info.h"

namespace pumice::files {

struct GgufFormat {
  std::uint32_t id;
  std::string_view name;
  std::int64_t block, block_bytes;  // weights and bytes of a block
  std::optional<Format> as;         // the format with the same weights; nothing if the format is no format of weights, or was removed
  // Writes the weights of one block in the format `as`. Any bytes are a block.
  void (*expand)(const std::uint8_t* block, std::uint8_t* out) = nullptr;
};

// Returns null if GGUF files have no such format, or if it is one of core/formats.def.
const GgufFormat* gguf_format(std::uint32_t id);

// Q2_0 as some writers have it: groups of 128 weights, under the same id as groups of 64.
const GgufFormat& wide_q2_0();

// Returns `tensor`, whose bytes in the file are in `format`, as a tensor in format.as. Throws invalid_argument if format.as is empty, and
// model_format if the tensor has more than 2^64 - 1 bytes then.
TensorInfo expanded(TensorInfo tensor, const GgufFormat& format);

// NVFP4 tensors "X.weight" have a factor in a tensor "X.scale", or one of each expert: makes their rows times this factor, and leaves out
// the factors, and the scales of activations ("X.input_scale"), which are not rounded here. `files` are those of the model, for errors.
// Throws model_format if a factor has another shape or format.
void apply_factors(const std::vector<File>& files, std::vector<TensorInfo>& tensors);

}  // namespace pumice::files
