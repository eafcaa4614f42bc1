#include "files/metadata.h"

#include <cmath>
#include <type_traits>

#include "files/text.h"

namespace pumice::files {
namespace {

template <class T>
struct ListOf : std::false_type {};
template <class T>
struct ListOf<std::vector<T>> : std::true_type {};

template <class T>
inline constexpr bool kIsInteger = std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::int32_t>;

}  // namespace

std::string field_of(std::string_view key) { return key.empty() ? "\"\"" : std::string(key); }

std::string type_name(const Value& value) {
  static constexpr const char* kNames[] = {"null",     "true or false", "an integer", "an integer", "a number", "a string", "booleans",
                                           "integers", "integers",      "numbers",    "numbers",    "strings",  ""};
  static_assert(std::size(kNames) == std::variant_size_v<Value>);
  return std::visit(
      [&](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, Nested>) {
          return held.list ? "a list that is not all numbers, all strings or all flags" : "an empty object";
        } else if constexpr (ListOf<T>::value || std::is_same_v<T, StringList>) {
          return held.empty() ? "an empty list" : str("a list of ", held.size(), " ", kNames[value.index()]);
        } else {
          return kNames[value.index()];
        }
      },
      value);
}

void Metadata::wrong_type(std::string_view key, const Value& found, const char* needed) const {
  fail_at(ErrorKind::model_format, file_, field_of(key), std::nullopt, "is ", type_name(found), "; ", needed, " is needed");
}

double Metadata::finite(std::string_view key, double number) const {
  if (!std::isfinite(number)) {
    fail_at(ErrorKind::model_format, file_, field_of(key), std::nullopt, "is ", number, "; a finite number is needed");
  }
  return number;
}

std::string Metadata::utf8(std::string_view key, std::string_view text) const {
  if (!valid_utf8(text)) fail_at(ErrorKind::model_format, file_, field_of(key), std::nullopt, "is not valid UTF-8: ", quote(text));
  return std::string(text);
}

bool Metadata::has(std::string_view key) const {
  if (entries_.contains(key)) return true;
  const std::string nested = std::string(key) + ".";
  const auto next = entries_.lower_bound(nested);
  return next != entries_.end() && next->first.starts_with(nested);
}

const Value* Metadata::value(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

const Value* Metadata::present(std::string_view key, const char* needed) const {
  const Value* found = value(key);
  if (!found && has(key)) fail_at(ErrorKind::model_format, file_, field_of(key), std::nullopt, "is an object; ", needed, " is needed");
  return found && !std::holds_alternative<std::monostate>(*found) ? found : nullptr;
}

std::optional<bool> Metadata::boolean(std::string_view key) const {
  const Value* found = present(key, "true or false");
  if (!found) return std::nullopt;
  if (const bool* held = std::get_if<bool>(found)) return *held;
  wrong_type(key, *found, "true or false");
}

std::optional<std::int64_t> Metadata::integer(std::string_view key) const {
  const Value* found = present(key, "an integer");
  if (!found) return std::nullopt;
  if (const auto* held = std::get_if<std::int64_t>(found)) return *held;
  wrong_type(key, *found, std::holds_alternative<std::uint64_t>(*found) ? "an integer below 2^63" : "an integer");
}

std::optional<double> Metadata::number(std::string_view key) const {
  const Value* found = present(key, "a number");
  if (!found) return std::nullopt;
  if (const auto* held = std::get_if<std::int64_t>(found)) return static_cast<double>(*held);
  if (const auto* held = std::get_if<std::uint64_t>(found)) return static_cast<double>(*held);
  if (const auto* held = std::get_if<double>(found)) return finite(key, *held);
  wrong_type(key, *found, "a number");
}

std::optional<std::string> Metadata::string(std::string_view key) const {
  const Value* found = present(key, "a string");
  if (!found) return std::nullopt;
  if (const auto* held = std::get_if<std::string>(found)) return utf8(key, *held);
  wrong_type(key, *found, "a string");
}

std::optional<std::vector<std::int64_t>> Metadata::integer_list(std::string_view key) const {
  const Value* found = present(key, "an integer or a list of integers");
  if (!found) return std::nullopt;
  return std::visit(
      [&](const auto& held) -> std::vector<std::int64_t> {
        using T = std::decay_t<decltype(held)>;
        if constexpr (kIsInteger<T>) return {held};
        if constexpr (ListOf<T>::value || std::is_same_v<T, StringList>) {
          if (held.empty()) return {};  // an empty list is also an empty list of integers, whatever its type in the file
          if constexpr (ListOf<T>::value) {
            if constexpr (kIsInteger<typename T::value_type>) return {held.begin(), held.end()};
          }
        }
        wrong_type(key, *found, "an integer or a list of integers");
      },
      *found);
}

std::optional<std::vector<double>> Metadata::number_list(std::string_view key) const {
  const Value* found = present(key, "a number or a list of numbers");
  if (!found) return std::nullopt;
  std::vector<double> numbers = std::visit(
      [&](const auto& held) -> std::vector<double> {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) return {static_cast<double>(held)};
        if constexpr (ListOf<T>::value || std::is_same_v<T, StringList>) {
          if (held.empty()) return {};
          if constexpr (ListOf<T>::value) {
            if constexpr (!std::is_same_v<typename T::value_type, bool>) return {held.begin(), held.end()};
          }
        }
        wrong_type(key, *found, "a number or a list of numbers");
      },
      *found);
  for (const double number : numbers) finite(key, number);
  return numbers;
}

std::optional<std::vector<std::string>> Metadata::strings(std::string_view key) const {
  const Value* found = present(key, "a string or a list of strings");
  if (!found) return std::nullopt;
  if (const auto* held = std::get_if<std::string>(found)) return std::vector{utf8(key, *held)};
  std::vector<std::string> texts;
  if (const auto* held = std::get_if<StringList>(found)) {
    for (std::size_t i = 0; i < held->size(); ++i) texts.push_back(utf8(key, (*held)[i]));
    return texts;
  }
  if (type_name(*found) == "an empty list") return texts;
  wrong_type(key, *found, "a string or a list of strings");
}

}  // namespace pumice::files
