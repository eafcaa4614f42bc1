// Makes text from files safe to show and to compare.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace pumice::files {

// Returns whether `text` is well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
bool valid_utf8(std::string_view text);

// Returns the text in a form that is safe in messages: control characters and bytes that are not UTF-8 become \xNN, and a text longer than
// `limit` bytes is cut.
std::string printable(std::string_view text, std::size_t limit = 4096);
std::string quote(std::string_view text);  // returns printable(text, 80) in single quotation marks

[[noreturn]] void fail_with_at(ErrorKind kind, const std::string& file, const std::string& field, std::optional<std::uint64_t> offset,
                               std::initializer_list<TextPart> parts);
// Throws an Error about a file, with a message such as "model.gguf: general.alignment: is 3 (at byte 64)".
template <class... Parts>
[[noreturn]] void fail_at(ErrorKind kind, const std::string& file, const std::string& field, std::optional<std::uint64_t> offset,
                          const Parts&... parts) {
  fail_with_at(kind, file, field, offset, {TextPart(parts)...});
}

}  // namespace pumice::files
