#include "model/token_types.h"

#include <algorithm>

namespace pumice::model {

bool tells_types(const Reader& read, std::span<const std::string_view> prefixes, std::string_view tensor) {
  if (read.gguf()) return true;
  const files::Value* said = read.file().value(read.key("", "type_vocab_size"));
  const auto* number = said ? std::get_if<std::int64_t>(said) : nullptr;
  const auto has = [&](std::string_view prefix) { return read.file().find(str(prefix, tensor)) != nullptr; };
  return !number || *number != 0 || std::ranges::any_of(prefixes, has);
}

}  // namespace pumice::model
