// Token types (BERT's first and second text).
#pragma once

#include <span>
#include <string_view>

#include "model/reader.h"

namespace pumice::model {

// Returns whether the model has embeddings of token types. If type_vocab_size is 0, it has them if the file has `tensor`; otherwise it
// always has them, and the file must have the tensor.
bool tells_types(const Reader& read, std::span<const std::string_view> prefixes, std::string_view tensor);

}  // namespace pumice::model
