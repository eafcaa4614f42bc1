// The layout of what Top (core/ops.h) gives for a row of logits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace pumice {

inline constexpr std::int32_t kTopHead = 8;    // words of a row of Top's `out` before its logits
inline constexpr std::int32_t kMostTop = 128;  // k
constexpr std::int64_t top_width(std::int64_t k, std::int64_t reported) { return kTopHead + 2 * k + reported; }

// A row of Top's `out`: words of 32 bits, floats and integers. Where a logit is no finite number, only the first three and
// reported() are valid.
struct TopRow {
  std::span<const float> words;
  std::int32_t k = 1;
  std::int32_t not_finite() const { return integer(0); }          // how many logits are not
  std::int32_t first_not_finite() const { return integer(1); }    // its id; -1: none
  float value_not_finite() const { return words[2]; }
  std::int32_t count() const { return integer(3); }               // of logits below: min(k, allowed ids that are not reported)
  float logit(std::int32_t i) const { return words[index(kTopHead + i)]; }        // descending, ties by ascending id
  std::int32_t id(std::int32_t i) const { return integer(kTopHead + k + i); }
  float reported(std::int32_t i) const { return words[index(kTopHead + 2 * k + i)]; }  // in the order of the batch's list

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::int32_t integer(std::int32_t i) const { return std::bit_cast<std::int32_t>(words[index(i)]); }
};

}  // namespace pumice
