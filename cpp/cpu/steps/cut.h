// How the work of a step is cut into tasks. None of these numbers changes a bit of the result (kernels.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "cpu/team.h"

namespace pumice::cpu {

inline constexpr std::int64_t kTaskFloats = 16 * 1024;  // of a step over rows: 2 to 5 us

// Of products; bench/ops_bench.cpp cuts its own the same way.
inline constexpr std::int64_t kNarrowRows = 8;   // up to here a product is bound by reading weights, and takes all rows together
inline constexpr std::int64_t kBlockRows = 96;   // token rows of one product: a multiple of 4 and of 6, the kernels' tiles
inline constexpr std::int64_t kBlockGroups = 4;  // 64 outputs x 96 rows x 4 bytes = 24 KiB: the tile stays in L1 for its epilogue
inline constexpr std::int64_t kTileGroups = 2;   // of the kernels' widest tile: an odd number of groups leaves half of the last one unused
static_assert(kBlockGroups % kTileGroups == 0);

// Of each block but the last, for more rows than kNarrowRows: blocks as even as tiles allow.
inline std::int64_t block_rows(std::int64_t rows) { return std::min(rows, round_up(ceil_div(rows, ceil_div(rows, kBlockRows)), 12)); }

struct Range {
  std::int64_t first, count;
};

struct Cut {
  std::int64_t tasks = 0;
  Range rows{0, 0};                // that the step works on; of pooling: segments
  std::int64_t per_task = 1;       // of them, or page runs, or units of attention
  std::int64_t groups = 1;         // products: groups of weight rows of a task
  std::int64_t tasks_of_rows = 1;  // products: tasks of one block of rows
  bool shared_out = false;         // each thread takes a run of tasks (shares.h)

  Range task_rows(std::int64_t task) const {
    const std::int64_t first = task * per_task;
    return {rows.first + first, std::min(per_task, rows.count - first)};
  }
};

// `rows` of so many floats: tasks of about kTaskFloats.
inline Cut cut_rows(const Range& rows, std::int64_t width) {
  Cut cut{.rows = rows};
  cut.per_task = std::max({std::int64_t{1}, kTaskFloats / width, ceil_div(rows.count, kMaxTasks)});
  cut.tasks = ceil_div(rows.count, cut.per_task);
  return cut;
}

}  // namespace pumice::cpu
