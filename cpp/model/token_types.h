// Token types (BERT's first and second text).
#pragma once

#include <span>
#include <string_view>

#include "model/reader.h"

namespace pumice::model {

// Whether the model tells types apart. Its table decides where type_vocab_size says 0, and must be there where it does not.
bool tells_types(const Reader& read, std::span<const std::string_view> prefixes, std::string_view tensor);

}  // namespace pumice::model
