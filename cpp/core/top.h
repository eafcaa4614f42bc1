// The layout of a row of Top's output (core/ops.h).
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace pumice {

inline constexpr std::int32_t kTopHead = 8;    // number of words before the logits in a row of Top's output
inline constexpr std::int32_t kMostTop = 128;  // the largest Top::k
constexpr std::int64_t top_width(std::int64_t k, std::int64_t reported) { return kTopHead + 2 * k + reported; }

// A row of Top's output, which consists of 32-bit words. Each word is a float or an integer. If a logit is not finite, only the first three
// words and reported() are valid.
struct TopRow {
  std::span<const float> words;
  std::int32_t k = 1;
  std::int32_t not_finite() const { return integer(0); }        // number of logits that are not finite
  std::int32_t first_not_finite() const { return integer(1); }  // id of the first logit that is not finite, or -1 if all are finite
  float value_not_finite() const { return words[2]; }           // value of the first logit that is not finite
  // Returns the number of ranked logits, which is at most k. It is less than the row's Batch::ranked only if fewer ids are allowed and not
  // reported.
  std::int32_t count() const { return integer(3); }
  // Returns ranked logit i. The logits are in descending order; equal logits are in ascending order of their ids.
  float logit(std::int32_t i) const { return words[index(kTopHead + i)]; }
  std::int32_t id(std::int32_t i) const { return integer(kTopHead + k + i); }
  // Returns the logit of reported id i, in the order of Batch::reported.
  float reported(std::int32_t i) const { return words[index(kTopHead + 2 * k + i)]; }

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::int32_t integer(std::int32_t i) const { return std::bit_cast<std::int32_t>(words[index(i)]); }
};

}  // namespace pumice
