// Arithmetic on numbers from a file or a caller. If a result overflows, the checked_ functions return std::nullopt.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/error.h"

namespace pumice {

template <class T>
[[nodiscard]] std::optional<T> checked_add(T a, T b) noexcept {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <class T>
[[nodiscard]] std::optional<T> checked_mul(T a, T b) noexcept {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Rounds n up to a multiple of `alignment`, which must be a power of two.
[[nodiscard]] inline std::optional<std::uint64_t> checked_align(std::uint64_t n, std::uint64_t alignment) noexcept {
  const auto raised = checked_add<std::uint64_t>(n, alignment - 1);
  if (!raised) return std::nullopt;
  return *raised & ~(alignment - 1);
}

template <class To, class From>
[[nodiscard]] std::optional<To> checked_narrow(From value) noexcept {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  To narrowed;
  if (__builtin_add_overflow(value, From{0}, &narrowed)) return std::nullopt;
  return narrowed;
}

// Returns a * b, or throws ErrorKind::out_of_memory if the product overflows. Used for sizes that earlier checks have bounded.
template <class T>
T mul_or_fail(T a, T b, const char* what) {
  if (auto product = checked_mul(a, b)) return *product;
  fail(ErrorKind::out_of_memory, what, ": ", a, " x ", b, " is more than can be addressed");
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return a / b + (a % b != 0); }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) noexcept { return ceil_div(a, b) * b; }

}  // namespace pumice
