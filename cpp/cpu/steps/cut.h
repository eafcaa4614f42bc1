// How the work of a step is cut into tasks. None of these numbers changes a bit of the result (kernels.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "cpu/team.h"

namespace pumice::cpu {

inline constexpr std::int64_t kTaskFloats = 16 * 1024;  // floats of one task of a step over rows: 2 to 5 us

// For products; bench/ops_bench.cpp cuts its products in the same way.
// With at most this many rows, reading weights limits a product, and one task computes all rows.
inline constexpr std::int64_t kNarrowRows = 8;
inline constexpr std::int64_t kBlockRows = 96;   // token rows of one product: a multiple of 4 and of 6, the kernels' tiles
inline constexpr std::int64_t kBlockGroups = 4;  // 64 outputs x 96 rows x 4 bytes = 24 KiB: the tile stays in L1 for its epilogue
inline constexpr std::int64_t kTileGroups =
    2;  // groups of the kernels' widest tile: with an odd number of groups half of the last tile is unused
static_assert(kBlockGroups % kTileGroups == 0);

// Returns the number of rows in each block but the last, for more than kNarrowRows rows. Blocks are as even as tiles allow.
inline std::int64_t block_rows(std::int64_t rows) { return std::min(rows, round_up(ceil_div(rows, ceil_div(rows, kBlockRows)), 12)); }

struct Range {
  std::int64_t first, count;
};

struct Cut {
  std::int64_t tasks = 0;
  Range rows{0, 0};                // rows that the step works on; for pooling: segments
  std::int64_t per_task = 1;       // rows of a task, or page runs, or units of attention
  std::int64_t groups = 1;         // products: groups of weight rows in a task
  std::int64_t tasks_of_rows = 1;  // products: tasks for one block of rows
  bool shared_out = false;         // true: each thread takes a run of tasks (shares.h)

  Range task_rows(std::int64_t task) const {
    const std::int64_t first = task * per_task;
    return {rows.first + first, std::min(per_task, rows.count - first)};
  }
};

// Cuts rows of `width` floats into tasks of about kTaskFloats.
inline Cut cut_rows(const Range& rows, std::int64_t width) {
  Cut cut{.rows = rows};
  cut.per_task = std::max({std::int64_t{1}, kTaskFloats / width, ceil_div(rows.count, kMaxTasks)});
  cut.tasks = ceil_div(rows.count, cut.per_task);
  return cut;
}

}  // namespace pumice::cpu
