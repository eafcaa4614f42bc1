// The metadata of a model file: GGUF key-value pairs, or config.json with dotted keys for nested values ("rope_scaling.factor",
// "id2label.0"). The same getters read both.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pumice::files {

// A list of strings in one buffer, so that a vocabulary of 262,144 words needs few allocations.
class StringList {
 public:
  void reserve(std::size_t strings) { ends_.reserve(strings); }
  void push_back(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const { return ends_.size(); }
  bool empty() const { return ends_.empty(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  bool operator==(const StringList&) const = default;

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

// Stands for a value in config.json that is a list with items of several types, a list of lists or objects, or an object without members.
// The items of such a list have entries of their own, with dotted keys.
struct Nested {
  bool list = false;
  std::size_t items = 0;
  bool operator==(const Nested&) const = default;
};

using Value = std::variant<std::monostate,  // null in config.json
                           bool, std::int64_t, std::uint64_t /* only above 2^63 - 1 */, double, std::string, std::vector<bool>,
                           std::vector<std::int32_t> /* GGUF integers of 32 bits and fewer */, std::vector<std::int64_t>,
                           std::vector<float> /* GGUF */, std::vector<double>, StringList, Nested>;

// Returns a key in the form that error messages use. An empty key, which JSON allows, becomes "" with its quotation marks.
std::string field_of(std::string_view key);
std::string type_name(const Value& value);  // returns the type in words: "an integer", "a list of 3 strings"

// The entries of a file's metadata. Strings are stored with the bytes of the file, but string() and strings() return valid UTF-8 or throw.
// Getters return an empty optional if the key is missing or its value is null. They throw model_format if the value has another type or is
// an object, or if a number is not finite. The error has the file, the key, the type that was found and the type that is needed.
class Metadata {
 public:
  using Entries = std::map<std::string, Value, std::less<>>;

  Metadata() = default;
  Metadata(std::string file, Entries entries) : file_(std::move(file)), entries_(std::move(entries)) {}

  const std::string& file() const { return file_; }
  // Returns true also if the value is null, and for the name of a nested object ("rope_scaling").
  bool has(std::string_view key) const;
  const Value* value(std::string_view key) const;
  const Entries& entries() const { return entries_; }

  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // integers count as numbers
  std::optional<std::string> string(std::string_view key) const;
  // In these three, a single value counts as a list of one item.
  std::optional<std::vector<std::int64_t>> integer_list(std::string_view key) const;
  std::optional<std::vector<double>> number_list(std::string_view key) const;
  std::optional<std::vector<std::string>> strings(std::string_view key) const;

 private:
  [[noreturn]] void wrong_type(std::string_view key, const Value& found, const char* needed) const;
  // Returns nullptr if the key is missing or its value is null. Throws if the key is the name of an object with members. Such a key has no
  // entry of its own, because only its members have entries, so without this check it would seem to be missing.
  const Value* present(std::string_view key, const char* needed) const;
  double finite(std::string_view key, double number) const;
  std::string utf8(std::string_view key, std::string_view text) const;

  std::string file_;
  Entries entries_;
};

}  // namespace pumice::files
