// Functions that compute sums over the columns of sixteen rows at the same time. Only files of quantize/ include this header.
#pragma once

#include <cstdint>

#include "core/formats_search.h"

namespace pumice::quantize {

inline constexpr int kVectors = 4, kRows = kVectors * search::kLanes;
inline constexpr std::int64_t kChunk = 256;  // number of columns in a chunk; few enough that their sums stay in the L1 cache

// One column of sixteen rows, with one number for each row.
struct Column {
  search::Lanes row[kVectors];
};

// add_products() computes sums[c] += sum over j in [0, n) of matrix[j][c] * values[j], for c in [0, count). It calls add_rows(), which adds
// kAtOnce of these terms at once. With four terms at once, the sums are read from the L1 cache and written to it only a quarter as often.
template <int kAtOnce>
void add_rows(const float* matrix, std::int64_t stride, const Column* values, Column* sums, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      search::Lanes sum = sums[c].row[v];
      for (int j = 0; j < kAtOnce; ++j) sum += matrix[j * stride + c] * values[j].row[v];
      sums[c].row[v] = sum;
    }
  }
}
inline void add_products(const float* matrix, std::int64_t stride, const Column* values, std::int64_t n, Column* sums, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + 4 <= n; j += 4) add_rows<4>(matrix + j * stride, stride, values + j, sums, count);
  for (; j < n; ++j) add_rows<1>(matrix + j * stride, stride, values + j, sums, count);
}
// Computes sums[c] += factors[c] * value, for c in [0, count).
inline void add_product(const float* factors, const Column& value, Column* sums, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    for (int v = 0; v < kVectors; ++v) sums[c].row[v] += factors[c] * value.row[v];
  }
}

}  // namespace pumice::quantize
