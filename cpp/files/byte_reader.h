// Reads little-endian numbers and strings of bytes from a file, one after another from its beginning. Each read is checked against the
// number of bytes that are left. The check is always n <= size - position, which cannot overflow. Bytes are buffered, so most reads make no
// system call.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "files/file.h"
#include "files/text.h"

namespace pumice::files {

template <class T>
T from_little_endian(std::string_view bytes) {
  using Bits = std::conditional_t<
      sizeof(T) == 1, std::uint8_t,
      std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
  static_assert(sizeof(T) == sizeof(Bits));
  Bits bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bits = static_cast<Bits>(bits | static_cast<Bits>(static_cast<std::uint8_t>(bytes[i])) << (8 * i));
  return std::bit_cast<T>(bits);
}

class ByteReader {
 public:
  // Reads at most the first `limit` bytes of the file.
  ByteReader(const File& file, std::uint64_t limit) : file_(file), end_(std::min(file.size(), limit)) {}

  std::uint64_t position() const { return start_ + next_; }
  std::uint64_t remaining() const { return end_ - position(); }

  // Sets the name of the field that is read next, for error messages.
  void enter(std::string field) { field_ = std::move(field); }
  const std::string& field() const { return field_; }

  template <class T>
  T take() {
    return from_little_endian<T>(bytes(sizeof(T)));
  }

  // Returns the next n bytes, which are valid until the next read.
  std::string_view bytes(std::uint64_t n) {
    if (n > window_.size() - next_) refill(n);
    const auto taken = std::string_view(window_).substr(next_, static_cast<std::size_t>(n));
    next_ += static_cast<std::size_t>(n);
    return taken;
  }

  // Throws model_format if the bytes that are left cannot hold `count` entries of at least `least` bytes each. `what` names the entries in
  // the message.
  void expect(std::uint64_t count, std::uint64_t least, const char* what);

  template <class... Parts>
  [[noreturn]] void fail(std::uint64_t offset, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, file_.path(), field_, offset, parts...);
  }

 private:
  void refill(std::uint64_t n);

  const File& file_;
  std::uint64_t end_;
  std::string window_;  // bytes [start_, start_ + window_.size()) of the file
  std::uint64_t start_ = 0;
  std::size_t next_ = 0;  // index of the next byte in the window
  std::string field_;
};

}  // namespace pumice::files
