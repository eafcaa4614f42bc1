#include "files/text.h"

namespace pumice::files {
namespace {

// Returns the length in bytes of the character at the beginning of `text`, or 0 if no well-formed UTF-8 character is there.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) { return byte(i) >= low && byte(i) <= high; };
  const unsigned first = byte(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // a continuation byte, or the first byte of an overlong form
  if (first < 0xE0) return follows(1) ? 2 : 0;
  if (first < 0xF0) return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  if (first < 0xF5) return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

}  // namespace

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= limit) return shown + "...";
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

std::string quote(std::string_view text) { return "'" + printable(text, 80) + "'"; }

void fail_with_at(ErrorKind kind, const std::string& file, const std::string& field, std::optional<std::uint64_t> offset,
                  std::initializer_list<TextPart> parts) {
  const std::string what = str(printable(file), ": ", printable(field, 200), field.empty() ? "" : ": ", joined(parts));
  Error error = Error(kind, offset ? str(what, " (at byte ", *offset, ")") : what).in_file(printable(file)).at_field(printable(field));
  if (offset) throw std::move(error).at_offset(*offset);
  throw error;
}

}  // namespace pumice::files
