// The engine reports every failure with one exception type, Error. Its kind selects the Python exception class. Its text says what failed
// and where, what was found, what was needed, and what to do next.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <ios>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace pumice {

// Each comment names the Python exception class and, where the class does not say it, the cause.
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

  // These three functions set the location of the error in a file. files/ and model/ use them for model_format errors.
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

// True for text and whole numbers. str() appends such parts without a stream, because a stream writes the same text 20 times slower and
// str() builds the name of every tensor.
template <class T>
concept PlainPart =
    std::convertible_to<const T&, std::string_view> || std::same_as<T, char> ||
    (std::integral<T> && sizeof(T) > 1 && !std::same_as<T, wchar_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>);

template <PlainPart T>
void append_part(std::string& text, const T& part) {
  if constexpr (std::convertible_to<const T&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::same_as<T, char>) {
    text += part;
  } else {
    text += std::to_string(part);
  }
}

// Builds a text from parts: str("tensor ", name, " has ", n, " rows"). All error messages are built with it.
template <class... Parts>
std::string str(const Parts&... parts) {
  if constexpr ((PlainPart<Parts> && ...)) {
    std::string text;
    (append_part(text, parts), ...);
    return text;
  } else {
    std::ostringstream out;
    out.exceptions(std::ios::badbit);  // without memory it throws std::bad_alloc; otherwise it would leave text out in silence
    (out << ... << parts);
    return std::move(out).str();
  }
}

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, str(parts...));
}

// Throws ErrorKind::invalid_argument unless `condition` holds, in release builds too. Used to check the arguments of public calls.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(ErrorKind::invalid_argument, parts...);
}

}  // namespace pumice
