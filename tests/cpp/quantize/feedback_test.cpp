// Feedback lowers the loss of rows, the same bits for any rows beside them and any order of work, and refuses bad matrices.
#include "quantize/feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cases.h"
#include "core/error.h"
#include "quantize/cholesky.h"
#include "quantize/orders.h"

namespace pumice::quantize {
namespace {

const Cancel kNever;

// H of rows whose columns go together, of different sizes.
std::vector<float> products_of(std::int64_t cols, std::int64_t rows, std::uint64_t seed) {
  cases::Random random(seed);
  std::vector<float> common = random.normals(cols), products(cols * cols), x(cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float shared = random.normal();
    for (std::int64_t c = 0; c < cols; ++c) x[c] = (random.normal() + shared * common[c]) * (c % 7 == 0 ? 3.0f : 1.0f);
    for (std::int64_t a = 0; a < cols; ++a) {
      for (std::int64_t b = 0; b < cols; ++b) products[a * cols + b] += x[a] * x[b];
    }
  }
  return products;
}

std::vector<std::uint8_t> fed_back(Format format, const std::vector<float>& weights, const std::vector<float>& products, std::int64_t cols,
                                   const FeedbackOptions& options = {}, const Parallel& parallel = kForwards) {
  const auto rows = static_cast<std::int64_t>(weights.size()) / cols;
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(rows * row_bytes(format, cols)));
  Feedback(products, cols, options, parallel, kNever).pack(format, weights.data(), rows, packed.data(), parallel, kNever);
  return packed;
}

// The sum over rows of e'He, relative to the sum of w'Hw.
double loss(Format format, const std::vector<std::uint8_t>& packed, const std::vector<float>& weights, const std::vector<float>& products,
            std::int64_t cols) {
  std::vector<float> out(weights.size());
  unpack(format, packed.data(), static_cast<std::int64_t>(out.size()), out.data());
  double error = 0, size = 0;
  for (std::size_t first = 0; first < weights.size(); first += cols) {
    for (std::int64_t a = 0; a < cols; ++a) {
      for (std::int64_t b = 0; b < cols; ++b) {
        const double p = products[a * cols + b];
        error += p * (out[first + a] - weights[first + a]) * (out[first + b] - weights[first + b]);
        size += p * weights[first + a] * weights[first + b];
      }
    }
  }
  return error / size;
}

TEST(Cholesky, TheFactorTimesItsTransposeIsTheMatrix) {
  for (const std::int64_t n : {1, 3, 64, 65, 200}) {
    std::vector<float> a = products_of(n, n + 20, 3);
    for (std::int64_t i = 0; i < n; ++i) a[i * n + i] += 1;
    const auto v = upper_factor(a, n, kBackwards, kNever);
    double largest = 0, error = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t c = 0; c <= r; ++c) {
        double sum = 0;
        for (std::int64_t k = r; k < n; ++k) sum += static_cast<double>(v[r * n + k]) * v[c * n + k];
        error = std::max(error, std::fabs(sum - a[r * n + c]));
        largest = std::max(largest, std::fabs(static_cast<double>(a[r * n + c])));
      }
    }
    EXPECT_LT(error, 2e-6 * largest) << n;
  }
}

TEST(Feedback, LowersTheLossInEveryFormat) {
  constexpr std::int64_t cols = 512, rows = 20;
  const auto products = products_of(cols, 1200, 1);
  const auto weights = cases::Random(2).normals(rows * cols, 0.05f);
  std::vector<float> columns(cols);
  for (std::int64_t c = 0; c < cols; ++c) columns[c] = products[c * cols + c];
  for (const FormatInfo& f : kFormats) {
    if (!f.quantized || !can_pack(f.format)) continue;
    std::vector<std::uint8_t> searched(static_cast<std::size_t>(rows * row_bytes(f.format, cols)));
    pack_rows(f.format, weights.data(), rows, columns, searched.data());
    const double before = loss(f.format, searched, weights, products, cols);
    const double once = loss(f.format, fed_back(f.format, weights, products, cols, {.passes = 0}), weights, products, cols),
                 after = loss(f.format, fed_back(f.format, weights, products, cols), weights, products, cols);
    std::printf("%-6s loss %.3e, with feedback %.3f times, with two passes %.3f times\n", f.name.data(), before, once / before,
                after / before);
    EXPECT_LT(once, before * 0.9) << f.name;
    EXPECT_LT(after, once) << f.name;
  }
}

TEST(Feedback, RowsAreIndependent) {
  constexpr std::int64_t cols = 352;  // no multiple of a chunk
  const auto products = products_of(cols, 500, 4);
  const auto weights = cases::Random(5).normals(37 * cols, 0.05f);
  const auto all = fed_back(Format::Q4_1, weights, products, cols, {}, kBackwards);
  for (std::int64_t row : {0, 15, 16, 36}) {
    const auto alone = fed_back(Format::Q4_1, {weights.begin() + row * cols, weights.begin() + (row + 1) * cols}, products, cols);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * row_bytes(Format::Q4_1, cols))) << row;
  }
}

// Without coupling no column can make up for another, and without products all count the same: both are the search alone.
TEST(Feedback, IsTheSearchWhereNothingGoesTogether) {
  constexpr std::int64_t cols = 512, rows = 5;
  const auto weights = cases::Random(6).normals(rows * cols, 0.05f);
  for (const Format format : {Format::Q3_K, Format::Q4_0}) {
    std::vector<std::uint8_t> searched(static_cast<std::size_t>(rows * row_bytes(format, cols)));
    pack(format, weights.data(), rows * cols, searched.data());
    const double plain = loss(format, searched, weights, products_of(cols, 0, 1), cols);
    EXPECT_TRUE(std::isnan(plain));  // no products: no loss
    std::vector<float> identity(cols * cols);
    for (std::int64_t c = 0; c < cols; ++c) identity[c * cols + c] = 4;
    const double want = loss(format, searched, weights, identity, cols);
    EXPECT_LE(loss(format, fed_back(format, weights, identity, cols), weights, identity, cols), want * 1.0001) << name(format);
    const std::vector<float> none(cols * cols);
    EXPECT_LE(loss(format, fed_back(format, weights, none, cols), weights, identity, cols), want * 1.0001) << name(format);
  }
}

TEST(Feedback, WeightsOnAGridKeepTheirCodes) {
  constexpr std::int64_t cols = 512, rows = 4;
  cases::Random random(7);
  std::vector<float> weights(rows * cols);
  for (std::size_t block = 0; block < weights.size() / 32; ++block) {
    const float d = f16_to_f32(f32_to_f16(random.normal() * 0.01f));
    for (int i = 0; i < 32; ++i) weights[32 * block + i] = d * static_cast<float>(i == 5 ? -8 : random.below(16) - 8);
  }
  std::vector<float> out(weights.size());
  unpack(Format::Q4_0, fed_back(Format::Q4_0, weights, products_of(cols, 600, 8), cols).data(), rows * cols, out.data());
  EXPECT_EQ(out, weights);
}

TEST(Feedback, BadInputIsRefused) {
  const std::vector<float> weights(512, 1.0f);
  const auto text = [&](std::vector<float> products, const FeedbackOptions& options, Format format) -> std::string {
    try {
      fed_back(format, weights, products, 256, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  std::vector<float> good(256 * 256);
  for (int c = 0; c < 256; ++c) good[257 * c] = 1;
  EXPECT_EQ(text(good, {}, Format::Q4_K), "");
  EXPECT_NE(text(good, {}, Format::MXFP4).find("MXFP4"), std::string::npos);
  EXPECT_NE(text(good, {}, Format::F16).find("F16"), std::string::npos);
  EXPECT_NE(text(good, {.coupling = 1.5f}, Format::Q4_K).find("coupling"), std::string::npos);
  EXPECT_NE(text(good, {.damping = 0.0f}, Format::Q4_K).find("damping"), std::string::npos);
  EXPECT_NE(text(good, {.passes = -1}, Format::Q4_K).find("passes"), std::string::npos);
  EXPECT_NE(text(std::vector<float>(256 * 255), {}, Format::Q4_K).find("256 columns"), std::string::npos);
  auto bad = good;
  bad[7 * 256 + 3] = std::numeric_limits<float>::infinity();
  EXPECT_NE(text(bad, {}, Format::Q4_K).find("columns 7 and 3"), std::string::npos);
  bad = good;
  bad[7 * 257] = -1;
  EXPECT_NE(text(bad, {}, Format::Q4_K).find("columns 7 and 7"), std::string::npos);
  bad = good;
  bad[7 * 256 + 3] = 100;
  EXPECT_NE(text(bad, {}, Format::Q4_K).find("positive definite"), std::string::npos);
  Cancel cancel;
  cancel.request();
  EXPECT_THROW(Feedback(good, 256, {}, kForwards, cancel), Error);
}

}  // namespace
}  // namespace pumice::quantize
