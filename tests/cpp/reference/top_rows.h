// A test for any backend: if logits of a row are not finite, Top must report how many, and the first of them with its value.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cases.h"
#include "core/backend.h"

namespace pumice::cases {

inline void expect_not_finite_found(Backend& backend) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::int32_t kWidth = 9000, kRows = 6, kK = 5, kReported = 4;
  const auto columns = static_cast<std::int32_t>(top_width(kK, kReported));
  const Program program{.name = "top",
                        .ops = {Top{.logits = {0, 0, kWidth}, .out = {1, 0, columns}, .k = kK, .reported = kReported}},
                        .slots = {{Rows::tokens, kWidth}, {Rows::tokens, columns}},
                        .input = 0,
                        .output = 1};
  std::vector<float> logits = Random(5).normals(std::int64_t{kRows} * kWidth), out(static_cast<std::size_t>(kRows * columns));
  struct Bad {
    std::int32_t row, id;
    float value;
  };
  const Bad all[] = {{1, 0, kInfinity},    {2, 8999, -kInfinity}, {3, 4095, std::nanf("")},
                     {3, 4096, kInfinity}, {3, 17, -kInfinity},   {5, 4097, -std::nanf("")}};
  for (const Bad& b : all) logits[static_cast<std::size_t>(b.row * kWidth + b.id)] = b.value;
  const std::vector<std::int32_t> reported = {3, 4096, 8999, 4096, 4097}, reported_first = {0, 0, 0, 3, 3, 3, 5};
  const auto weights = backend.pack({}, {}, {}, Cancel());
  const auto workspace = backend.make_workspace(Crew::team);
  backend.prepare(program, weights, Compute::automatic)
      ->run(*workspace, nullptr, {.rows = kRows, .reported = reported, .reported_first = reported_first}, {logits, out}, Cancel());
  for (std::int32_t r = 0; r < kRows; ++r) {
    SCOPED_TRACE(r);
    const TopRow row{std::span(out).subspan(static_cast<std::size_t>(r * columns), static_cast<std::size_t>(columns)), kK};
    std::int32_t count = 0;
    const Bad* first = nullptr;
    for (const Bad& b : all) {
      if (b.row != r) continue;
      ++count;
      if (first == nullptr || b.id < first->id) first = &b;
    }
    EXPECT_EQ(row.not_finite(), count);
    EXPECT_EQ(row.first_not_finite(), first == nullptr ? -1 : first->id);
    if (first != nullptr) {
      EXPECT_EQ(std::isnan(row.value_not_finite()), std::isnan(first->value));
      if (!std::isnan(first->value)) {
        EXPECT_EQ(row.value_not_finite(), first->value);
      }
    }
    for (std::int32_t m = reported_first[static_cast<std::size_t>(r)]; m < reported_first[static_cast<std::size_t>(r) + 1]; ++m) {
      const float expected = logits[static_cast<std::size_t>(r * kWidth + reported[static_cast<std::size_t>(m)])];
      const float found = row.reported(m - reported_first[static_cast<std::size_t>(r)]);
      EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << found << " and " << expected;
    }
  }
}

}  // namespace pumice::cases
