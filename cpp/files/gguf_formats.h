// The GGUF formats that are not in core/formats.def. Tensors in some of these formats are converted while they are read, to a format of
// core/formats.def that holds the same weights exactly.
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
  std::int64_t block, block_bytes;  // number of weights in a block, and number of bytes
  // The format to which tensors are converted. Empty if tensors in this format cannot be used, because the format holds no weights, or
  // because GGUF has dropped it.
  std::optional<Format> as;
  // Writes the weights of one block in the format `as`. Cannot fail, because any bytes are a valid block. Null if `as` is empty.
  void (*expand)(const std::uint8_t* block, std::uint8_t* out) = nullptr;
};

// Returns the format with this id in GGUF files. Returns null if there is none, or if it is in core/formats.def.
const GgufFormat* gguf_format(std::uint32_t id);

// Returns the variant of Q2_0 with blocks of 128 weights. Some writers use it under the id of Q2_0, whose blocks have 64 weights.
const GgufFormat& wide_q2_0();

// Returns `tensor`, whose bytes in the file are in `format`, as a tensor that is converted to format.as when it is read. Throws
// invalid_argument if format.as is empty, and out_of_memory if the converted tensor would have 2^63 bytes or more.
TensorInfo expanded(TensorInfo tensor, const GgufFormat& format);

// Applies the factors of NVFP4 tensors. A tensor X.weight may have factors in a tensor X.scale: one for all, or one for each expert. After
// this call, the rows of X.weight are multiplied by their factor when they are read, and X.scale is removed from `tensors`. X.input_scale
// is removed, too. Other programs scale activations by it before they round them, but pumice does not round activations. `files` are the
// files of the model. Throws model_format if X.scale has another shape or format.
void apply_factors(const std::vector<File>& files, std::vector<TensorInfo>& tensors);

}  // namespace pumice::files
