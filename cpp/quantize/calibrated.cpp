#include "quantize/calibrated.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace pumice::quantize {

namespace {

constexpr std::int64_t kSearched = 16;  // number of rows that one job of search_rows() packs

void search_rows(Format format, const float* weights, std::int64_t rows, std::int64_t cols, std::uint8_t* packed, const Parallel& parallel,
                 const Cancel& cancel) {
  const std::int64_t bytes = row_bytes(format, cols);
  parallel((rows + kSearched - 1) / kSearched, [&](std::int64_t job) {
    for (std::int64_t row = job * kSearched; row < std::min(rows, (job + 1) * kSearched); ++row) {
      cancel.check();
      pumice::pack(format, weights + row * cols, cols, packed + row * bytes);
    }
  });
  cancel.check();
}

// Copies `count` bytes of each of `rows` rows.
void copy_rows(const void* from, std::int64_t from_stride, void* to, std::int64_t to_stride, std::int64_t count, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<std::uint8_t*>(to) + row * to_stride, static_cast<const std::uint8_t*>(from) + row * from_stride,
                static_cast<std::size_t>(count));
  }
}

}  // namespace

const Feedback& CalibratedPacker::feedback(std::size_t block, const Parallel& parallel, const Cancel& cancel) {
  if (!feedback_ || known_ != block) {
    feedback_.reset();
    const Products::Block& seen = input_.seen.blocks()[block];
    feedback_ = std::make_unique<Feedback>(seen.sums, seen.cols, options_, parallel, cancel);
    known_ = block;
  }
  return *feedback_;
}

Losses CalibratedPacker::pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel,
                              const Cancel& cancel) {
  const std::int64_t cols = input_.seen.cols(), bytes = row_bytes(format, cols);
  require(cols % info(format).block == 0, "rows of ", cols, " weights are not whole blocks of ", name(format));
  const auto size = static_cast<std::size_t>(rows * bytes);
  std::vector<std::uint8_t> searched(size), part, other;
  std::vector<float> columns;
  Losses losses;
  for (std::size_t b = 0; b < input_.seen.blocks().size(); ++b) {
    const Products::Block& held = input_.held.blocks()[b];
    const bool whole = held.cols == cols;
    const std::int64_t width = row_bytes(format, held.cols), at = row_bytes(format, held.first);
    const float* values = weights;
    std::uint8_t *by_search = searched.data(), *by_feedback = packed;
    if (!whole) {
      columns.resize(static_cast<std::size_t>(rows * held.cols));
      part.resize(static_cast<std::size_t>(rows * width));
      other.resize(part.size());
      copy_rows(weights + held.first, cols * 4, columns.data(), held.cols * 4, held.cols * 4, rows);
      values = columns.data();
      by_search = part.data();
      by_feedback = other.data();
    }
    search_rows(format, values, rows, held.cols, by_search, parallel, cancel);
    feedback(b, parallel, cancel).pack(format, values, rows, by_feedback, parallel, cancel);
    losses.searched += loss(held, format, values, rows, by_search, parallel, cancel);
    losses.fed_back += loss(held, format, values, rows, by_feedback, parallel, cancel);
    if (!whole) {
      copy_rows(by_search, width, searched.data() + at, bytes, width, rows);
      copy_rows(by_feedback, width, packed + at, bytes, width, rows);
    }
  }
  if (!losses.better()) std::copy(searched.begin(), searched.end(), packed);
  return losses;
}

std::uint64_t CalibratedPacker::bytes(std::int64_t cols, std::int64_t rows, Format format) {
  const std::int64_t width = Products::block_cols(cols);
  std::int64_t sum = 2 * width * width * 4 + rows * row_bytes(format, cols);
  if (width < cols) sum += rows * (4 * width + 2 * row_bytes(format, width));
  return static_cast<std::uint64_t>(sum);
}

}  // namespace pumice::quantize
