#include "model/row_sources.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/cancel.h"
#include "files/expect_error.h"

namespace pumice::model::row_sources_test {
namespace {

using files::testing::expect_error;

constexpr std::int64_t kRows = 1000, kCols = 8;

std::vector<float> values() {
  std::vector<float> all(kRows * kCols);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i % 13) - 6.0f;
  return all;
}

// Returns a matrix that calls `reading` before each reading, and whose columns are divided by their lengths.
Matrix normalised(std::function<void()> reading) {
  Matrix matrix{.name = "head", .format = Format::F32, .rows = kRows, .cols = kCols};
  matrix.read = [read = read_floats(values(), kCols), reading = std::move(reading)](std::int64_t first, std::int64_t count,
                                                                                    std::uint8_t* out) {
    reading();
    read(first, count, out);
  };
  divide_by_lengths_of_columns(matrix, Format::F32, 0.0f);
  return matrix;
}

void expect_normalised(const Matrix& matrix) {
  const std::vector<float> all = values();
  std::vector<float> found(all.size());
  matrix.read(0, kRows, reinterpret_cast<std::uint8_t*>(found.data()));
  for (std::size_t col = 0; col < kCols; ++col) {
    double squares = 0;
    for (std::size_t i = col; i < all.size(); i += kCols) squares += static_cast<double>(all[i]) * static_cast<double>(all[i]);
    for (std::size_t i = col; i < all.size(); i += kCols) ASSERT_NEAR(found[i], all[i] / std::sqrt(squares), 1e-6) << i;
  }
}

TEST(NormalisedColumns, HaveALengthOfOne) {
  int readings = 0;
  const Matrix prepared = normalised([&] { ++readings; });
  prepared.prepare(Cancel());
  EXPECT_EQ(readings, kRows);
  prepared.prepare(Cancel());
  EXPECT_EQ(readings, kRows);  // lengths are computed once
  expect_normalised(prepared);
  expect_normalised(normalised([] {}));  // rows that are read without prepare() are the same
}

TEST(NormalisedColumns, ACancelStopsTheReadingOfAllRows) {
  Cancel cancel;
  int readings = 0;
  const Matrix matrix = normalised([&] {
    if (++readings == 5) cancel.request();
  });
  expect_error(ErrorKind::cancelled, "cancelled", [&] { matrix.prepare(cancel); });
  EXPECT_EQ(readings, 5);
  expect_normalised(matrix);  // the lengths are computed again, of all rows
}

}  // namespace
}  // namespace pumice::model::row_sources_test
