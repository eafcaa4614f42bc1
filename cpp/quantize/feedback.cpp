// The loss of a row is e'He, where e[j] is the error of column j (feedback.h). V is the upper triangular factor of H = V V'. So the loss is
// the sum over c of y[c]^2, where y[c] is the sum over j <= c of V[j][c] e[j]. Codes are chosen column by column. The best error of column
// c is -(sum over j < c of V[j][c] e[j]) / V[c][c], because y[c] is then 0. This is GPTQ without the inverse of H. An error that differs by
// d from the best error increases the loss by V[c][c]^2 d^2, if later columns can be any real numbers.
//
// Sixteen rows are quantized together, four in each vector. Columns are processed in chunks of up to 256. First the products of the chunk
// with all columns before it are computed. Then the codes of the chunk's columns are chosen one by one.
#include "quantize/feedback.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/formats_search.h"
#include "quantize/cholesky.h"
#include "quantize/columns.h"

namespace pumice::quantize {

namespace {

using search::kLanes;
using search::Lanes;

// Sixteen rows of a matrix while they are quantized.
template <Format f>
class Rows {
 public:
  Rows(std::span<const float> products, std::span<const float> factor, std::int64_t cols)
      : products_(products),
        factor_(factor),
        cols_(cols),
        weights_(cols),
        levels_(cols),
        errors_(cols),
        scales_(cols / kBlock * kVectors) {}

  void load(const float* weights, std::int64_t rows) {
    for (std::int64_t c = 0; c < cols_; ++c) {
      for (int r = 0; r < kRows; ++r) weights_[c].row[r / kLanes][r % kLanes] = r < rows ? weights[r * cols_ + c] : 0.0f;
    }
  }

  // Chooses scales and codes, column by column.
  void feed_back(const Cancel& cancel) {
    for (std::int64_t first = 0; first < cols_; first += kChunk) {
      cancel.check();
      const std::int64_t last = std::min(first + kChunk, cols_);
      Column sums[kChunk]{};
      add_products(factor_.data() + first, cols_, errors_.data(), first, sums, last - first);
      for (std::int64_t block = first; block < last; block += kBlock) choose_block(block, last, sums + (block - first));
    }
  }

  // Goes through all columns once. Gives each column the level with the least loss while all other columns keep their levels.
  void descend(const Cancel& cancel) {
    for (std::int64_t first = 0; first < cols_; first += kChunk) {
      cancel.check();
      const std::int64_t last = std::min(first + kChunk, cols_);
      Column slopes[kChunk]{};
      add_products(products_.data() + first, cols_, errors_.data(), cols_, slopes, last - first);
      for (std::int64_t c = first; c < last; ++c) {
        const float* row = products_.data() + c * cols_;
        const float curvature = 1.0f / row[c];
        Column change, target;
        bool changed = false;
        for (int v = 0; v < kVectors; ++v) target.row[v] = weights_[c].row[v] - errors_[c].row[v] + slopes[c - first].row[v] * curvature;
        for (int v = 0; v < kVectors; ++v) {
          const Lanes before = errors_[c].row[v];
          set_level(c, v, target.row[v]);
          change.row[v] = errors_[c].row[v] - before;
          for (int b = 0; b < kLanes; ++b) changed |= change.row[v][b] != 0;
        }
        if (changed) add_product(row + c + 1, change, slopes + (c + 1 - first), last - (c + 1));
      }
    }
  }

  void store(std::int64_t rows, std::uint8_t* packed) const {
    for (std::int64_t block = 0; block < cols_; block += kBlock) {
      for (int v = 0; v < kVectors; ++v) {
        Lanes levels[kBlock];
        for (int i = 0; i < kBlock; ++i) levels[i] = levels_[block + i].row[v];
        for (int b = 0; b < kLanes && v * kLanes + b < rows; ++b) {
          std::uint8_t* row = packed + (v * kLanes + b) * row_bytes(f, cols_);
          search::store<f>(scales_[block / kBlock * kVectors + v], levels, b, row + row_bytes(f, block));
        }
      }
    }
  }

 private:
  static constexpr int kBlock = search::kBlock<f>, kSub = search::kGrid<f>.sub, kSubs = search::kSubs<f>;

  // Sets the level of column c, for the four rows of vector v, to the level nearest to `target`, and sets the error of the column.
  void set_level(std::int64_t c, int v, Lanes target) {
    const search::Scales<f>& scales = scales_[c / kBlock * kVectors + v];
    const search::Fit fit = scales.of(static_cast<int>(c % kBlock / kSub));
    const Lanes level = search::level<f>(target, fit, search::inverse(fit.scale));
    levels_[c].row[v] = level;
    errors_[c].row[v] = weights_[c].row[v] - search::value<f>(level, fit);
  }

  // Writes to `x`, for `count` columns from `column` on, the values that compensate for the errors of the earlier columns.
  void targets(std::int64_t column, const Column* sums, int v, int count, Lanes* x) const {
    for (int i = 0; i < count; ++i) {
      const std::int64_t c = column + i;
      x[i] = weights_[c].row[v] + sums[i].row[v] * (1.0f / factor_[c * cols_ + c]);
    }
  }

  void choose_block(std::int64_t block, std::int64_t chunk_end, Column* sums) {
    Lanes x[kBlock], cost[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const float v = factor_[(block + i) * cols_ + block + i];
      cost[i] = Lanes{} + v * v;
    }
    for (int v = 0; v < kVectors; ++v) {
      targets(block, sums, v, kBlock, x);
      scales_[block / kBlock * kVectors + v] = search::choose<f>(x, cost);
    }
    for (int sub = 0; sub < kSubs; ++sub) {
      const std::int64_t first = block + sub * kSub;
      if constexpr (kSubs > 1) {
        // The earlier sub-blocks have changed the targets of this sub-block since the block's scales were chosen, so the scale of this
        // sub-block is chosen again.
        for (int v = 0; v < kVectors && sub > 0; ++v) {
          search::Scales<f>& scales = scales_[block / kBlock * kVectors + v];
          targets(first, sums + sub * kSub, v, kSub, x);
          const search::Fit fit = search::find<f>(x, cost + sub * kSub);
          search::settle<f>(x, cost + sub * kSub, fit.scale * search::inverse(scales.d), fit.min * search::inverse(scales.dmin), scales,
                            sub);
        }
      }
      for (std::int64_t c = first; c < first + kSub; ++c) {
        Column* sum = sums + (c - block);
        const float* row = factor_.data() + c * cols_;
        for (int v = 0; v < kVectors; ++v) set_level(c, v, weights_[c].row[v] + sum->row[v] * (1.0f / row[c]));
        add_product(row + c + 1, errors_[c], sum + 1, chunk_end - (c + 1));
      }
    }
  }

  std::span<const float> products_, factor_;
  const std::int64_t cols_;
  std::vector<Column> weights_, levels_, errors_;
  std::vector<search::Scales<f>> scales_;  // four elements per block, each for four rows
};

std::vector<float> prepared(std::span<const float> products, std::int64_t cols, const FeedbackOptions& options, const Cancel& cancel) {
  require(cols > 0, "feedback: a matrix of ", cols, " columns");
  require(static_cast<std::int64_t>(products.size()) / cols == cols && static_cast<std::int64_t>(products.size()) % cols == 0,
          "feedback: the products of ", cols, " columns are ", products.size(), " numbers; they must be ", cols, " rows of ", cols);
  require(options.coupling >= 0 && options.coupling <= 1, "feedback: the coupling is ", options.coupling, "; it must be from 0 to 1");
  require(options.damping > 0 && options.damping <= 1, "feedback: the damping is ", options.damping, "; it must be above 0, and at most 1");
  require(options.passes >= 0 && options.passes <= 100, "feedback: ", options.passes, " passes; there may be 0 to 100");
  double sum = 0;
  for (std::int64_t r = 0; r < cols; ++r) {
    cancel.check();
    for (std::int64_t c = 0; c <= r; ++c) {
      const float p = products[r * cols + c];
      if (!std::isfinite(p) || (r == c && p < 0)) {
        fail(ErrorKind::invalid_argument, "feedback: the product of columns ", r, " and ", c, " is ", p,
             r == c ? "; it must be 0 or more, and finite" : "; it must be finite");
      }
    }
    sum += products[r * cols + r];
  }
  const double mean = sum / static_cast<double>(cols);
  std::vector<float> scaled(products.size());
  const auto numbers = [&](std::int64_t r, std::int64_t c) { return mean > 0 ? products[r * cols + c] / mean : 0.0; };
  for (std::int64_t r = 0; r < cols; ++r) {
    cancel.check();
    for (std::int64_t c = 0; c < r; ++c) scaled[r * cols + c] = scaled[c * cols + r] = static_cast<float>(numbers(r, c) * options.coupling);
    scaled[r * cols + r] = static_cast<float>(numbers(r, r) + options.damping);
  }
  return scaled;
}

}  // namespace

Feedback::Feedback(std::span<const float> products, std::int64_t cols, const FeedbackOptions& options, const Parallel& parallel,
                   const Cancel& cancel)
    : cols_(cols),
      passes_(options.passes),
      products_(prepared(products, cols, options, cancel)),
      factor_(upper_factor(products_, cols, parallel, cancel)) {}

void Feedback::pack(Format format, const float* weights, std::int64_t rows, std::uint8_t* packed, const Parallel& parallel,
                    const Cancel& cancel) const {
  const FormatInfo& form = info(format);
  require(rows >= 0, "feedback: ", rows, " rows");
  require(cols_ % form.block == 0, "feedback: rows of ", cols_, " weights are not whole blocks of ", form.name, ", which hold ",
          form.block);
  for (std::int64_t row = 0; row < rows; ++row) {
    cancel.check();
    check_weights(format, weights + row * cols_, cols_);
  }
  const bool known = search::with_grid(format, [&]<Format f>() {
    parallel((rows + kRows - 1) / kRows, [&](std::int64_t tile) {
      cancel.check();
      const std::int64_t first = tile * kRows, count = std::min<std::int64_t>(kRows, rows - first);
      Rows<f> tile_rows(products_, factor_, cols_);
      tile_rows.load(weights + first * cols_, count);
      tile_rows.feed_back(cancel);
      for (int pass = 0; pass < passes_; ++pass) tile_rows.descend(cancel);
      tile_rows.store(count, packed + first * row_bytes(f, cols_));
    });
  });
  require(known, "feedback: weights cannot be chosen for ", form.name, "; take a quantized format that pack() searches");
}

}  // namespace pumice::quantize
