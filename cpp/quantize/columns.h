// Sums over the columns of sixteen rows at a time. Internal to this room.
#pragma once

#include <cstdint>

#include "core/formats_search.h"

namespace pumice::quantize {

inline constexpr int kVectors = 4, kRows = kVectors * search::kLanes;
inline constexpr std::int64_t kChunk = 256;  // columns whose sums stay in the first cache

// A column of sixteen rows: one number for each of them.
struct Column {
  search::Lanes row[kVectors];
};

// sums[c] += sum over j in [0, n) of matrix[j][c] * values[j], for c in [0, count). j ascends, four at a time: so the sums, which stay in
// the first cache, are read and written a quarter as often.
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
// sums[c] += factors[c] * value, for c in [0, count).
inline void add_product(const float* factors, const Column& value, Column* sums, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    for (int v = 0; v < kVectors; ++v) sums[c].row[v] += factors[c] * value.row[v];
  }
}

}  // namespace pumice::quantize
