// Packs float weights. F32, F16 and BF16 weights are only rounded. For quantized formats, the functions search for the best scales and
// codes (formats_search.h).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/formats_search.h"

namespace pumice {

namespace {

using search::kLanes;
using search::Lanes;

void round_floats(Format format, const float* weights, std::int64_t n, std::uint8_t* packed) {
  if (format == Format::F32) {
    if (n > 0) std::memcpy(packed, weights, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    const auto round = format == Format::F16 ? f32_to_f16 : f32_to_bf16;
    for (std::int64_t i = 0; i < n; ++i) blocks::store_u16(packed + 2 * i, round(weights[i]));
  }
}

// Packs `count` blocks, at most kLanes. `column_weights` has the factor of each weight's squared error, or is nullptr if all factors are 1.
template <Format f>
void pack_blocks(const float* weights, const float* column_weights, int count, std::uint8_t* packed) {
  constexpr int block = search::kBlock<f>, sub = search::kGrid<f>.sub;
  Lanes x[block]{}, w[block];
  for (Lanes& one : w) one = Lanes{} + 1.0f;
  for (int b = 0; b < count; ++b) {
    for (int i = 0; i < block; ++i) {
      x[i][b] = weights[block * b + i];
      if (column_weights) w[i][b] = column_weights[block * b + i];
    }
  }
  const search::Scales<f> scales = search::choose<f>(x, w);
  for (int s = 0; s < search::kSubs<f>; ++s) {
    const search::Fit fit = scales.of(s);
    const Lanes scaled = search::inverse(fit.scale);
    for (int i = sub * s; i < sub * (s + 1); ++i) x[i] = search::level<f>(x[i], fit, scaled);
  }
  for (int b = 0; b < count; ++b) search::store<f>(scales, x, b, packed + info(f).block_bytes * b);
}

// Packs a row of n weights. `column_weights` has the factor of each weight's squared error, or is nullptr if all factors are 1.
void search_row(Format format, const float* weights, const float* column_weights, std::int64_t n, std::uint8_t* packed) {
  search::with_grid(format, [&]<Format f>() {
    constexpr std::int64_t block = search::kBlock<f>;
    for (std::int64_t b = 0; b < n / block; b += kLanes) {
      const int count = static_cast<int>(std::min<std::int64_t>(kLanes, n / block - b));
      pack_blocks<f>(weights + block * b, column_weights ? column_weights + block * b : nullptr, count, packed + info(f).block_bytes * b);
    }
  });
}

// Returns the column weights divided by their mean, so that any sum of them stays in the range of a float. Each result is at least 1e-5, so
// that a block is packed with a small squared error even if all its columns have the weight 0.
std::vector<float> evened(std::span<const float> column_weights) {
  double sum = 0;
  for (std::size_t i = 0; i < column_weights.size(); ++i) {
    const float w = column_weights[i];
    if (!(w >= 0 && w <= 3e38f))
      fail(ErrorKind::invalid_argument, "pack: the weight of column ", i, " is ", w, "; it must be 0 or more, and finite");
    sum += w;
  }
  std::vector<float> even(column_weights.begin(), column_weights.end());
  const double mean = sum / static_cast<double>(std::max<std::size_t>(column_weights.size(), 1));
  for (float& w : even) w = mean > 0 ? static_cast<float>(std::max(w / mean, 1e-5)) : 1.0f;
  return even;
}

}  // namespace

bool can_pack(Format format) {
  return info(format).block == 1 || search::with_grid(format, []<Format f>() {});
}

void check_weights(Format format, const float* weights, std::int64_t n) {
  // The largest half float. If no weight has a larger magnitude, every scale fits into a half float.
  constexpr float kLargest = 65504;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::fabs(weights[i]) <= kLargest) continue;
    fail(ErrorKind::numeric, "weight ", i, " is ", weights[i], "; ", name(format), " holds numbers from ", -kLargest, " to ", kLargest);
  }
}

void pack(Format format, const float* weights, std::int64_t n, std::uint8_t* packed) {
  const FormatInfo& f = info(format);
  require(can_pack(format), "pack: weights cannot be written as ", f.name);
  require(n >= 0 && n % f.block == 0, "pack: ", n, " weights are not whole blocks of ", f.name, ", which hold ", f.block);
  if (!f.quantized) return round_floats(format, weights, n, packed);
  check_weights(format, weights, n);
  search_row(format, weights, nullptr, n, packed);
}

void pack_rows(Format format, const float* weights, std::int64_t rows, std::span<const float> column_weights, std::uint8_t* packed) {
  const FormatInfo& f = info(format);
  const auto cols = static_cast<std::int64_t>(column_weights.size());
  require(can_pack(format), "pack: weights cannot be written as ", f.name);
  require(rows >= 0, "pack: ", rows, " rows");
  require(cols % f.block == 0, "pack: rows of ", cols, " weights are not whole blocks of ", f.name, ", which hold ", f.block);
  const std::vector<float> even = evened(column_weights);
  for (std::int64_t row = 0; row < rows; ++row, weights += cols, packed += row_bytes(format, cols)) {
    if (!f.quantized) {
      round_floats(format, weights, cols, packed);
    } else {
      check_weights(format, weights, cols);
      search_row(format, weights, even.data(), cols, packed);
    }
  }
}

}  // namespace pumice
