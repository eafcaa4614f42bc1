#include "quantize/products.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "quantize/columns.h"

namespace pumice::quantize {

namespace {

using search::kLanes;
using search::Lanes;

constexpr std::int64_t kTile = 64;                       // number of columns of a tile of H; a job computes one row of tiles
constexpr std::int64_t kDepth = 128;                     // number of rows of a panel (copy_columns()); two panels take 64 KB
constexpr std::int64_t kDown = 4, kAcross = 2 * kLanes;  // a block of kDown x kAcross numbers of H is in registers at the same time

// Copies columns [first, first + kTile) of `rows` rows of x to a panel. Columns from `cols` on become zeros.
void copy_columns(const float* x, std::int64_t rows, std::int64_t stride, std::int64_t first, std::int64_t cols, float* panel) {
  const std::int64_t there = std::min(kTile, cols - first);
  for (std::int64_t r = 0; r < rows; ++r, panel += kTile) {
    std::copy_n(x + r * stride + first, there, panel);
    std::fill(panel + there, panel + kTile, 0.0f);
  }
}

// Computes tile[i][j] += sum over rows of down[row][i] * across[row][j].
void add_panels(const float* down, const float* across, std::int64_t rows, float* tile) {
  for (std::int64_t i = 0; i < kTile; i += kDown) {
    for (std::int64_t j = 0; j < kTile; j += kAcross) {
      Lanes sums[kDown][2]{};
      for (std::int64_t r = 0; r < rows; ++r) {
        Lanes right[2];
        std::memcpy(right, across + r * kTile + j, sizeof right);
        for (std::int64_t k = 0; k < kDown; ++k) {
          const float left = down[r * kTile + i + k];
          sums[k][0] += left * right[0];
          sums[k][1] += left * right[1];
        }
      }
      for (std::int64_t k = 0; k < kDown; ++k) {
        Lanes before[2];
        std::memcpy(before, tile + (i + k) * kTile + j, sizeof before);
        before[0] += sums[k][0], before[1] += sums[k][1];
        std::memcpy(tile + (i + k) * kTile + j, before, sizeof before);
      }
    }
  }
}

// Updates the tile at (row, col) of H. Computes H[row + i][col + j] += sum over `rows` rows r of x[r][row + i] * x[r][col + j].
void add_tile(Products::Block& block, std::int64_t row, std::int64_t col, const float* x, std::int64_t rows, std::int64_t stride,
              const Cancel& cancel) {
  std::vector<float> down(kDepth * kTile), across(kDepth * kTile), tile(kTile * kTile);
  for (std::int64_t first = 0; first < rows; first += kDepth) {
    cancel.check();
    const std::int64_t depth = std::min(kDepth, rows - first);
    copy_columns(x + first * stride, depth, stride, row, block.cols, down.data());
    copy_columns(x + first * stride, depth, stride, col, block.cols, across.data());
    add_panels(down.data(), across.data(), depth, tile.data());
  }
  for (std::int64_t r = row; r < std::min(row + kTile, block.cols); ++r) {
    float* sums = block.sums.data() + r * block.cols;
    for (std::int64_t c = col; c < std::min(col + kTile, r + 1); ++c) sums[c] += tile[(r - row) * kTile + (c - col)];
  }
}

// Returns the sum of the losses of up to sixteen rows. With the error e[c] of column c, the loss of a row is the sum over c of e[c] *
// (H[c][c] e[c] + 2 s[c]), where s[c] is the sum over j > c of H[j][c] e[j].
double loss_of_rows(const Products::Block& block, const std::vector<Column>& errors, const Cancel& cancel) {
  const std::int64_t cols = block.cols;
  const float* sums = block.sums.data();
  double total = 0;
  for (std::int64_t first = 0; first < cols; first += kChunk) {
    cancel.check();
    const std::int64_t last = std::min(first + kChunk, cols);
    Column slopes[kChunk]{};
    add_products(sums + last * cols + first, cols, errors.data() + last, cols - last, slopes, last - first);
    for (std::int64_t j = first; j < last; ++j) add_product(sums + j * cols + first, errors[j], slopes, j - first);
    for (std::int64_t c = first; c < last; ++c) {
      const float own = sums[c * cols + c];
      for (int v = 0; v < kVectors; ++v) {
        const Lanes e = errors[c].row[v], part = e * (own * e + 2.0f * slopes[c - first].row[v]);
        for (int b = 0; b < kLanes; ++b) total += static_cast<double>(part[b]);
      }
    }
  }
  return total;
}

}  // namespace

std::int64_t Products::block_cols(std::int64_t cols, std::int64_t most) {
  if (cols <= most) return cols;
  const std::int64_t count = (cols + most - 1) / most;
  return ((cols + count - 1) / count + kChunk - 1) / kChunk * kChunk;
}

std::uint64_t Products::bytes(std::int64_t cols) {
  std::uint64_t sum = 0;
  const std::int64_t most = block_cols(cols);
  for (std::int64_t first = 0; first < cols; first += most) {
    const auto width = static_cast<std::uint64_t>(std::min(most, cols - first));
    sum += width * width * sizeof(float);
  }
  return sum;
}

Products::Products(std::int64_t cols, std::int64_t most) : cols_(cols) {
  require(cols > 0 && most > 0, "products of ", cols, " columns in blocks of ", most);
  const std::int64_t each = block_cols(cols, most);
  for (std::int64_t first = 0; first < cols; first += each) {
    const std::int64_t width = std::min(each, cols - first);
    blocks_.push_back({first, width, std::vector<float>(static_cast<std::size_t>(width * width))});
  }
}

void Products::add(const float* x, std::int64_t rows, std::int64_t stride, const Parallel& parallel, const Cancel& cancel) {
  require(rows >= 0 && stride >= cols_, "products: ", rows, " rows of ", cols_, " columns, ", stride, " numbers apart");
  for (Block& block : blocks_) {
    const std::int64_t tiles = (block.cols + kTile - 1) / kTile;
    parallel(tiles, [&](std::int64_t down) {
      for (std::int64_t across = 0; across <= down; ++across) {
        add_tile(block, down * kTile, across * kTile, x + block.first, rows, stride, cancel);
      }
    });
    cancel.check();
  }
  rows_ += rows;
}

double loss(const Products::Block& block, Format format, const float* weights, std::int64_t rows, const std::uint8_t* packed,
            const Parallel& parallel, const Cancel& cancel) {
  const std::int64_t cols = block.cols, bytes = row_bytes(format, cols);
  require(cols % info(format).block == 0, "loss: rows of ", cols, " weights are not whole blocks of ", name(format));
  std::vector<double> losses(static_cast<std::size_t>((rows + kRows - 1) / kRows));
  parallel(static_cast<std::int64_t>(losses.size()), [&](std::int64_t tile) {
    cancel.check();
    std::vector<float> values(static_cast<std::size_t>(cols));
    std::vector<Column> errors(static_cast<std::size_t>(cols), Column{});
    const std::int64_t first = tile * kRows;
    for (std::int64_t r = 0; r < std::min<std::int64_t>(kRows, rows - first); ++r) {
      unpack(format, packed + (first + r) * bytes, cols, values.data());
      for (std::int64_t c = 0; c < cols; ++c) errors[c].row[r / kLanes][r % kLanes] = weights[(first + r) * cols + c] - values[c];
    }
    losses[tile] = loss_of_rows(block, errors, cancel);
  });
  cancel.check();
  double sum = 0;
  for (const double part : losses) sum += part;
  return sum;
}

}  // namespace pumice::quantize
