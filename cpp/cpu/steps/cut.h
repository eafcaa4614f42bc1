// The division of a step's work into tasks. The numbers in this file do not affect the bits of the results (kernels.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "cpu/team.h"

namespace pumice::cpu {

// Number of floats in one task of a step that works row by row. Such a task takes 2 to 5 us.
inline constexpr std::int64_t kTaskFloats = 16 * 1024;

// The next five constants are for products. bench/ops_bench.cpp divides its products in the same way.

// Largest number of token rows of a narrow product. The time to read weights limits the speed of such a product, so one task computes all
// rows, and each weight is read once.
inline constexpr std::int64_t kNarrowRows = 8;
// Largest number of token rows in one task of a product. It is a multiple of 4 and of 6, the numbers of rows in the kernels' tiles.
inline constexpr std::int64_t kBlockRows = 96;
// Largest number of token rows in one task if the product's 8-bit weights are widened to words (ByteKernels::of_words). A kernel call
// widens the weights once for all its rows. With 72 rows, half of an encoder's micro-batch, a product takes 2 to 3 % longer than with 144.
inline constexpr std::int64_t kWidenedRows = 144;
// Largest number of weight groups in one task of a product with more than kNarrowRows rows. With this number, the output tile (64 outputs x
// 96 rows x 4 bytes = 24 KiB) stays in L1 until its epilogue.
inline constexpr std::int64_t kBlockGroups = 4;
// Number of weight groups in the kernels' widest tile. If a task had an odd number of groups, half of its last tile would be unused.
inline constexpr std::int64_t kTileGroups = 2;
static_assert(kBlockGroups % kTileGroups == 0);

// Returns the number of rows in each block of rows, for a product with more than kNarrowRows rows. A block has at most `most` rows. The
// blocks are as equal as whole tiles allow, and the last block may have fewer rows.
inline std::int64_t block_rows(std::int64_t rows, std::int64_t most = kBlockRows) {
  return std::min(rows, round_up(ceil_div(rows, ceil_div(rows, most)), 12));
}

struct Range {
  std::int64_t first, count;
};

struct Cut {
  std::int64_t tasks = 0;
  Range rows{0, 0};                // rows that the step works on; in some steps these are segments, page runs, pairs or units of attention
  std::int64_t per_task = 1;       // number of elements of `rows` in a task
  std::int64_t groups = 1;         // for products: number of weight groups in a task
  std::int64_t tasks_of_rows = 1;  // for products: number of tasks for each block of rows
  bool shared_out = false;         // true if Shares assigns the tasks, so that each thread runs consecutive tasks (shares.h)

  Range task_rows(std::int64_t task) const {
    const std::int64_t first = task * per_task;
    return {rows.first + first, std::min(per_task, rows.count - first)};
  }
};

// Divides rows of `width` floats into tasks of about kTaskFloats floats.
inline Cut cut_rows(const Range& rows, std::int64_t width) {
  Cut cut{.rows = rows};
  cut.per_task = std::max({std::int64_t{1}, kTaskFloats / width, ceil_div(rows.count, kMaxTasks)});
  cut.tasks = ceil_div(rows.count, cut.per_task);
  return cut;
}

}  // namespace pumice::cpu
