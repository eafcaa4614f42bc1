// The engine reports every failure with one exception type, Error. The kind of an Error selects the Python exception class. The message of
// an Error contains what failed and where, what was found, what was needed, and what the user can do.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace pumice {

// The comment behind each kind names the Python exception class, and the cause if the name of the class does not show it.
enum class ErrorKind {
  invalid_argument,      // ValueError
  wrong_type,            // TypeError
  io,                    // OSError: a file cannot be opened or read
  model_format,          // ModelFormatError: a file's bytes violate its format
  unsupported_model,     // UnsupportedModelError: the file is valid, but this version cannot run its model
  context_length,        // ContextLengthError
  unsupported_task,      // UnsupportedTaskError: for example generate() on an encoder
  out_of_memory,         // MemoryError
  device,                // DeviceError
  device_not_found,      // DeviceNotFoundError
  device_lost,           // DeviceLostError
  forked_device,         // ForkedDeviceError
  out_of_device_memory,  // OutOfDeviceMemoryError
  overloaded,            // OverloadedError: the queue is full
  numeric,               // NumericError: a NaN or infinity in place of a finite number
  grammar,               // GrammarError: a grammar cannot be enforced or exceeds a limit
  grammar_busy,          // GrammarBusyError: a grammar cannot be compiled now
  cancelled,             // KeyboardInterrupt: Ctrl-C; also thrown when a stream is closed
};

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  // in_file(), at_field() and at_offset() add the location of the error in a file. files/ and model/ use them for model_format errors.
  Error&& in_file(std::string file) && {
    file_ = std::move(file);
    return std::move(*this);
  }
  Error&& at_field(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }
  Error&& at_offset(std::uint64_t offset) && {
    offset_ = offset;
    return std::move(*this);
  }

  ErrorKind kind() const noexcept { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& file() const noexcept { return file_; }
  const std::string& field() const noexcept { return field_; }
  std::optional<std::uint64_t> offset() const noexcept { return offset_; }

 private:
  ErrorKind kind_;
  std::string message_, file_, field_;
  std::optional<std::uint64_t> offset_;
};

// A part of a message, which is a string, a character or a number. A TextPart only refers to its string, so the string must outlive it.
// str() and fail() convert their arguments to TextParts and call a function that takes a list of them. That function is compiled only once,
// and not once for each combination of types.
class TextPart {
 public:
  template <class T>
    requires std::convertible_to<const T&, std::string_view>
  explicit TextPart(const T& text) : kind_(Kind::text), text_(text) {}
  explicit TextPart(char character) : kind_(Kind::character), character_(character) {}
  explicit TextPart(double number) : kind_(Kind::real), real_(number) {}
  template <std::integral T>
    requires(std::same_as<T, bool> ||
             (sizeof(T) > 1 && !std::same_as<T, wchar_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>))
  explicit TextPart(T number) : kind_(std::is_signed_v<T> ? Kind::whole : Kind::natural) {
    if constexpr (std::is_signed_v<T>) {
      whole_ = number;
    } else {
      natural_ = number;
    }
  }

  void append_to(std::string& text) const;

 private:
  enum class Kind : std::uint8_t { text, character, whole, natural, real };
  Kind kind_;
  union {
    std::string_view text_;
    char character_;
    std::int64_t whole_;
    std::uint64_t natural_;
    double real_;  // written with at most six significant digits, the default of std::ostream
  };
};

// Returns the parts joined to one string.
std::string joined(std::initializer_list<TextPart> parts);
// Throws an Error whose text is the joined parts.
[[noreturn]] void fail_with(ErrorKind kind, std::initializer_list<TextPart> parts);

// Returns a string that consists of the parts, for example str("tensor ", name, " has ", n, " rows"). All error messages are built in this
// way.
template <class... Parts>
std::string str(const Parts&... parts) {
  return joined({TextPart(parts)...});
}

// Returns `number` written in a base from 2 to 16, with leading zeros up to `digits` digits.
std::string in_base(std::uint64_t number, int base, std::size_t digits = 1);

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  fail_with(kind, {TextPart(parts)...});
}

// Throws ErrorKind::invalid_argument unless `condition` is true, also in release builds. Used to check the arguments of public calls.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail_with(ErrorKind::invalid_argument, {TextPart(parts)...});
}

}  // namespace pumice
