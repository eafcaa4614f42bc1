// Factors the matrix with rows and columns in reverse order, A~ = L L' with L lower triangular, in strips of 64 columns. Reversed again, L
// is V. Sums run over the columns in ascending order, in four lanes, so results do not depend on threads.
#include "quantize/cholesky.h"

#include <algorithm>
#include <cmath>

#include "core/formats_search.h"

namespace pumice::quantize {

namespace {

using search::kLanes;
using search::Lanes;

constexpr std::int64_t kStrip = 64, kColumns = 4;  // a multiple of kLanes; columns whose sums are kept in registers at once

Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
float sum(Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Subtracts from a[r][c] the product of the first `n` columns of rows r and c, for r in [first, last) and c in [column, end), c <= r. n is
// a multiple of kStrip.
void subtract_products(float* a, std::int64_t stride, std::int64_t first, std::int64_t last, std::int64_t column, std::int64_t end,
                       std::int64_t n) {
  for (std::int64_t c = column; c < end; c += kColumns) {
    const std::int64_t width = std::min(kColumns, end - c);
    for (std::int64_t r = first; r < last; ++r) {
      Lanes sums[kColumns]{};
      const float* row = a + r * stride;
      const float* others[kColumns];
      for (std::int64_t k = 0; k < kColumns; ++k) others[k] = a + (c + std::min(k, width - 1)) * stride;
      for (std::int64_t i = 0; i < n; i += kLanes) {
        const Lanes v = load(row + i);
        for (std::int64_t k = 0; k < kColumns; ++k) sums[k] += v * load(others[k] + i);
      }
      for (std::int64_t k = 0; k < width && c + k <= r; ++k) a[r * stride + c + k] -= sum(sums[k]);
    }
  }
}

// Solves the columns [column, end) of row r, whose products with the columns before were subtracted. Rows c < r of the strip are final.
void solve_row(float* a, std::int64_t stride, std::int64_t r, std::int64_t column, std::int64_t end) {
  float* row = a + r * stride;
  for (std::int64_t c = column; c < std::min(end, r + 1); ++c) {
    const float* other = a + c * stride;
    float rest = row[c];
    for (std::int64_t i = column; i < c; ++i) rest -= row[i] * other[i];
    if (c < r) {
      row[c] = rest / other[c];
    } else {
      if (!(rest > 0)) {
        fail(ErrorKind::invalid_argument, "the products of columns are no positive definite matrix: column ", stride - 1 - c,
             " depends on the columns after it, up to rounding; use more damping");
      }
      row[c] = std::sqrt(rest);
    }
  }
}

}  // namespace

std::vector<float> upper_factor(const std::vector<float>& a, std::int64_t n, const Parallel& parallel, const Cancel& cancel) {
  std::vector<float> factor(a.size());
  for (std::int64_t r = 0; r < n; ++r) {
    cancel.check();
    // Row r of the reversed matrix, up to its diagonal: column n - 1 - r of `a` from the bottom. By symmetry it is read from the lower
    // half.
    for (std::int64_t c = 0; c <= r; ++c) factor[r * n + c] = a[(n - 1 - c) * n + (n - 1 - r)];
  }
  for (std::int64_t column = 0; column < n; column += kStrip) {
    cancel.check();
    const std::int64_t end = std::min(column + kStrip, n);
    subtract_products(factor.data(), n, column, end, column, end, column);
    for (std::int64_t r = column; r < end; ++r) solve_row(factor.data(), n, r, column, end);
    parallel((n - end + kStrip - 1) / kStrip, [&](std::int64_t strip) {
      const std::int64_t first = end + strip * kStrip, last = std::min(first + kStrip, n);
      subtract_products(factor.data(), n, first, last, column, end, column);
      for (std::int64_t r = first; r < last; ++r) solve_row(factor.data(), n, r, column, end);
    });
  }
  std::reverse(factor.begin(), factor.end());
  return factor;
}

}  // namespace pumice::quantize
