// Computes the upper triangular V with A = V V'. First the rows and columns of A are put in reverse order. The result is factored as L L'
// with a lower triangular L, in strips of 64 columns. V is L with its rows and columns in reverse order. Sums run over the columns in
// ascending order, in four lanes, so that results do not depend on the number of threads.
#include "quantize/cholesky.h"

#include <algorithm>
#include <cmath>

#include "core/formats_search.h"

namespace pumice::quantize {

namespace {

using search::kLanes;
using search::Lanes;

// kStrip is the number of columns in a strip, a multiple of kLanes. kColumns is the number of columns that are computed at the same time,
// with all their sums in registers.
constexpr std::int64_t kStrip = 64, kColumns = 4;

Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
float sum(Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Subtracts from a[r][c] the dot product of rows r and c over their first `n` columns, for each r in [first, last) and each c in [column,
// end) with c <= r. `n` must be a multiple of kStrip.
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

// Computes the numbers of L in row r, columns [column, end). subtract_products() must already have subtracted the products of the columns
// before `column`, and the rows before r must be final in columns [column, end).
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
    // Row r of the reversed matrix is column n - 1 - r of `a`, read from the bottom up to the diagonal. So only the lower half of `a` is
    // read.
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
