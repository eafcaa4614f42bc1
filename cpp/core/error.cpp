#include "core/error.h"

#include <algorithm>
#include <charconv>
#include <ios>
#include <iterator>
#include <sstream>

namespace pumice {

void TextPart::append_to(std::string& text) const {
  switch (kind_) {
    case Kind::text:
      text += text_;
      return;
    case Kind::character:
      text += character_;
      return;
    case Kind::whole:
      text += std::to_string(whole_);
      return;
    case Kind::natural:
      text += std::to_string(natural_);
      return;
    case Kind::real:
      break;
  }
  std::ostringstream out;  // used because the oldest macOS that wheels support has no std::to_chars() for floats
  // With this line, the stream throws std::bad_alloc if memory runs out. Without it, the stream would silently omit text.
  out.exceptions(std::ios::badbit);
  out << real_;
  text += std::move(out).str();
}

std::string joined(std::initializer_list<TextPart> parts) {
  std::string text;
  for (const TextPart& part : parts) part.append_to(text);
  return text;
}

std::string in_base(std::uint64_t number, int base, std::size_t digits) {
  char text[64];
  const char* end = std::to_chars(std::begin(text), std::end(text), number, base).ptr;
  const std::string all(text, static_cast<std::size_t>(end - text));
  return std::string(digits - std::min(digits, all.size()), '0') + all;
}

void fail_with(ErrorKind kind, std::initializer_list<TextPart> parts) { throw Error(kind, joined(parts)); }

}  // namespace pumice
