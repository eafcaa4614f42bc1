// Token types, which distinguish the first and the second text of a pair (BERT).
#pragma once

#include <span>
#include <string_view>

#include "model/reader.h"

namespace pumice::model {

// Returns whether the model has embeddings of token types. If type_vocab_size in config.json is 0, it has them if the file has `tensor`
// under one of `prefixes`. Otherwise this returns true, and a safetensors file must have the tensor.
bool tells_types(const Reader& read, std::span<const std::string_view> prefixes, std::string_view tensor);

}  // namespace pumice::model
