#include "cpu/attend_schedule.h"

#include <algorithm>

#include "core/checked.h"
#include "cpu/team.h"

namespace pumice::cpu {
namespace {

constexpr std::int64_t kUnitsMacs = 64 * 1024;  // number of multiply-adds that a task should have; they take 2 to 5 us

std::int64_t unit_rows(const AttendShape& shape) { return std::max<std::int64_t>(1, kMaxQueries / shape.group); }
// Returns the number of parts into which a group of query heads is divided. There can be several parts because one kernel call takes at
// most kMaxQueries queries.
std::int64_t head_splits(const AttendShape& shape) { return ceil_div(shape.group, kMaxQueries); }

}  // namespace

Keys keys_of(const AttendShape& shape, const Segment& segment, std::int64_t row) {
  if (shape.causal) {
    const std::int64_t position = segment.past + row;
    if (shape.chunk > 0) return {position / shape.chunk * shape.chunk, position + 1};
    return {shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0, position + 1};
  }
  const std::int64_t seen = segment.rows - segment.unseen;
  if (shape.window == 0) return {0, seen};
  return {std::max<std::int64_t>(0, row - shape.window), std::min<std::int64_t>(seen, row + shape.window + 1)};
}

AttendUnit AttendSchedule::unit(const AttendShape& shape, const Batch& batch, std::int64_t index) const {
  const auto after = std::upper_bound(first_unit.begin(), first_unit.end(), index);
  AttendUnit unit;
  unit.segment = static_cast<std::size_t>(after - first_unit.begin()) - 1;
  const Segment& segment = batch.segments[unit.segment];
  const std::int64_t blocks = ceil_div(segment.rows, unit_rows(shape)), splits = head_splits(shape);
  std::int64_t local = index - first_unit[unit.segment];
  // The units of one kv head follow each other, so that the pages of this head stay in the processor's caches.
  unit.kv_head = static_cast<int>(local / (blocks * splits));
  local %= blocks * splits;
  unit.head = local % splits * kMaxQueries;
  unit.heads = std::min<std::int64_t>(kMaxQueries, shape.group - unit.head);
  unit.row = local / splits * unit_rows(shape);
  unit.rows = std::min(unit_rows(shape), segment.rows - unit.row);
  unit.first_chunk = keys_of(shape, segment, unit.row).first_chunk();
  unit.last_chunk = keys_of(shape, segment, unit.row + unit.rows - 1).last_chunk();
  return unit;
}

void AttendSchedule::arrange(const AttendShape& shape, const Batch& batch, int threads) {
  first_unit.clear();
  pieces.clear();
  first_piece.clear();
  units = 0;
  most_chunks = 1;
  partial_floats = 0;
  double macs = 0;
  for (const Segment& segment : batch.segments) {
    first_unit.push_back(units);
    units += shape.kv_heads * ceil_div(segment.rows, unit_rows(shape)) * head_splits(shape);
    const Keys last = keys_of(shape, segment, segment.rows - 1);
    // The rows of one unit together attend to at most most_keys keys.
    const std::int64_t reach = 2 * std::int64_t{std::max(shape.window, shape.chunk)};
    const std::int64_t most_keys = reach > 0 ? std::min(last.end, reach + kMaxQueries) : last.end;
    most_chunks = std::max(most_chunks, std::min(last.last_chunk() + 1, most_keys / kChunkKeys + 2));
    macs += static_cast<double>(segment.rows) * shape.kv_heads * shape.group * (shape.key_dim + shape.value_dim) *
            static_cast<double>(most_keys);
  }
  first_unit.push_back(units);
  const double per_unit = macs / static_cast<double>(std::max<std::int64_t>(1, units));
  units_per_task = std::max<std::int64_t>(1, static_cast<std::int64_t>(kUnitsMacs / std::max(1.0, per_unit)));
  units_per_task = std::max(units_per_task, ceil_div(units, kMaxTasks));
  split = threads > 1 && units < 4 * threads && most_chunks > 1;
  if (!split) return;
  for (std::int64_t u = 0; u < units; ++u) {
    const AttendUnit own = unit(shape, batch, u);
    first_piece.push_back(static_cast<std::int64_t>(pieces.size()));
    for (std::int64_t chunk = own.first_chunk; chunk <= own.last_chunk; ++chunk) {
      pieces.push_back({u, chunk, partial_floats});
      partial_floats += own.rows * own.heads * (shape.value_dim + 2);
    }
  }
  first_piece.push_back(static_cast<std::int64_t>(pieces.size()));
}

}  // namespace pumice::cpu
