// Token types tell the first text of a pair from the second (BERT).
#pragma once

#include <span>
#include <string_view>

#include "model/reader.h"

namespace pumice::model {

// Returns true if the model adds token type embeddings. If type_vocab_size in config.json is 0, this depends on whether the file has
// `tensor` under one of `prefixes`. In all other cases the model adds them, and a safetensors file must have the tensor.
bool tells_types(const Reader& read, std::span<const std::string_view> prefixes, std::string_view tensor);

}  // namespace pumice::model
