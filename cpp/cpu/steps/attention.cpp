// The steps of attention. attend_schedule.h divides their work into units and tasks.
#include <limits>

#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

const AttendShape& shape_of(const Run& run, std::int32_t shape) { return run.plan.attends[static_cast<std::size_t>(shape)]; }
const AttendSchedule& schedule_of(const Run& run, std::int32_t shape) { return run.layout().attends[static_cast<std::size_t>(shape)]; }
float* shared_partials(const Run& run) { return reinterpret_cast<float*>(run.space.scratch.data() + run.layout().partials_at); }

// Writes the queries of a unit to `queries`, ordered by row and then by head. Returns the number of queries.
int queries_of(const Run& run, const AttendStep& s, const AttendUnit& unit, Query (&queries)[kMaxQueries]) {
  const Attend& op = s.op;
  const AttendShape& shape = shape_of(run, s.shape);
  const Segment& segment = run.batch.segments[unit.segment];
  const float* bias = op.bias == VectorId::none ? nullptr : run.weights.vector(op.bias);
  const float* slopes = op.slopes == VectorId::none ? nullptr : run.weights.vector(op.slopes);
  const std::int64_t first_head = unit.kv_head * std::int64_t{shape.group} + unit.head, reach = op.reach;
  const bool placed = op.places != VectorId::none;
  const auto of_head = [&](const View& view, std::int64_t r, std::int64_t head) -> const float* {
    return view ? run.row(view, segment.first + r) + head * (view.width / (op.q.width / op.key_dim)) : nullptr;
  };
  int count = 0;
  for (std::int64_t r = unit.row; r < unit.row + unit.rows; ++r) {
    const Keys keys = keys_of(shape, segment, r);
    for (std::int64_t head = first_head; head < first_head + unit.heads; ++head) {
      queries[count++] = {run.row(op.q, segment.first + r) + head * shape.key_dim,
                          keys.first,
                          keys.end,
                          segment.past + r,
                          bias ? bias + head * (2 * reach + 1) : nullptr,
                          slopes ? slopes[head] : 0.0f,
                          placed ? of_head(op.by_query, r, head) : nullptr,
                          placed ? of_head(op.by_key, 0, head) : nullptr};
    }
  }
  return count;
}

// Computes the partial results of chunks [first, last] of a unit and writes them to `partials`, ordered by chunk and then by query. `pages`
// is scratch memory for the addresses of all pages of the segment.
void attend_chunks(const Run& run, const AttendStep& s, const AttendUnit& unit, std::int64_t first, std::int64_t last,
                   const std::uint8_t** pages, float* partials) {
  const Attend& op = s.op;
  const AttendShape& shape = shape_of(run, s.shape);
  const std::int64_t page_base = run.layout().first_page[unit.segment];
  // The loop includes the page after these chunks, if there is one, because kernels prefetch that page.
  const std::int64_t end_key = keys_of(shape, run.batch.segments[unit.segment], unit.row + unit.rows - 1).end;
  const std::int64_t end_page = std::min((last + 1) * (kChunkKeys / kPageTokens) + 1, ceil_div(end_key, kPageTokens));
  for (std::int64_t p = first * (kChunkKeys / kPageTokens); p < end_page; ++p) {
    pages[p] = shape.cached ? run.space.pages[static_cast<std::size_t>(page_base + p)] + run.store->offset(op.cache, unit.kv_head)
                            : kept_page(run, op, page_base + p, unit.kv_head);
  }
  Query queries[kMaxQueries];
  const int count = queries_of(run, s, unit, queries);
  AttendCall call{shape.cached ? run.store->format() : KvFormat::f32,
                  shape.key_dim,
                  shape.value_dim,
                  op.scale,
                  op.softcap,
                  pages,
                  0,
                  op.reach,
                  op.places == VectorId::none ? nullptr : run.weights.vector(op.places),
                  op.by_key ? run.stride(op.by_key) : 0};
  for (call.chunk = first; call.chunk <= last; ++call.chunk) {
    if (run.cancel.requested()) return;  // ProgramExecutable::run() then throws ErrorKind::cancelled
    run.kernels.rows.attend(call, queries, count, partials);
    partials += count * (shape.value_dim + 2);
  }
}

// Merges the partial results of each query of a unit. Only the chunks that contain keys of this query are merged. The unit may have more
// chunks, but these depend on the batch, and the bits of a query's result must not depend on the batch.
void merge_chunks(const Run& run, const Attend& op, const AttendShape& shape, const AttendUnit& unit, const float* partials) {
  const Segment& segment = run.batch.segments[unit.segment];
  const float* sinks = op.sinks == VectorId::none ? nullptr : run.weights.vector(op.sinks);
  const std::int64_t floats = shape.value_dim + 2, stride = unit.rows * unit.heads * floats;
  for (std::int64_t r = 0; r < unit.rows; ++r) {
    const Keys keys = keys_of(shape, segment, unit.row + r);
    const std::int64_t first = keys.first_chunk(), last = keys.last_chunk();
    const std::int64_t head = unit.kv_head * std::int64_t{shape.group} + unit.head;
    float* out = run.row(op.out, segment.first + unit.row + r) + head * shape.value_dim;
    for (std::int64_t h = 0; h < unit.heads; ++h) {
      run.kernels.rows.merge(partials + (first - unit.first_chunk) * stride + (r * unit.heads + h) * floats, last - first + 1, stride,
                             shape.value_dim, sinks ? sinks[head + h] : -std::numeric_limits<float>::infinity(), out + h * shape.value_dim);
    }
  }
}

}  // namespace

Cut cut(const Run& run, const AttendStep& s) {
  const AttendSchedule& schedule = schedule_of(run, s.shape);
  Cut cut{.rows = {0, schedule.units}, .per_task = schedule.units_per_task};
  cut.tasks = schedule.split ? static_cast<std::int64_t>(schedule.pieces.size()) : ceil_div(schedule.units, cut.per_task);
  return cut;
}
void task(const Run& run, const AttendStep& s, const Cut& cut, std::int64_t index, int thread) {
  const AttendShape& shape = shape_of(run, s.shape);
  const AttendSchedule& schedule = schedule_of(run, s.shape);
  std::uint8_t* const own = run.scratch_of(thread);
  auto** pages = reinterpret_cast<const std::uint8_t**>(own);
  if (schedule.split) {
    const AttendSchedule::Piece& piece = schedule.pieces[static_cast<std::size_t>(index)];
    return attend_chunks(run, s, schedule.unit(shape, run.batch, piece.unit), piece.chunk, piece.chunk, pages,
                         shared_partials(run) + piece.partial);
  }
  auto* partials = reinterpret_cast<float*>(own + align_line(static_cast<std::uint64_t>(run.layout().most_pages) * sizeof(*pages)));
  const Range units = cut.task_rows(index);
  for (std::int64_t u = units.first; u < units.first + units.count && !run.cancel.requested(); ++u) {
    const AttendUnit unit = schedule.unit(shape, run.batch, u);
    attend_chunks(run, s, unit, unit.first_chunk, unit.last_chunk, pages, partials);
    merge_chunks(run, s.op, shape, unit, partials);
  }
}

Cut cut(const Run& run, const MergeStep& s) {
  const AttendSchedule& schedule = schedule_of(run, s.shape);
  Cut cut{.rows = {0, schedule.units}};
  if (!schedule.split) return cut;
  cut.per_task = std::max<std::int64_t>(1, schedule.units * kTaskFloats / std::max<std::int64_t>(1, schedule.partial_floats));
  cut.tasks = ceil_div(schedule.units, cut.per_task);
  return cut;
}
void task(const Run& run, const MergeStep& s, const Cut& cut, std::int64_t index, int) {
  const AttendShape& shape = shape_of(run, s.shape);
  const AttendSchedule& schedule = schedule_of(run, s.shape);
  const Range units = cut.task_rows(index);
  for (std::int64_t u = units.first; u < units.first + units.count; ++u) {
    merge_chunks(run, s.op, shape, schedule.unit(shape, run.batch, u), shared_partials(run) + schedule.first_partial(u));
  }
}

}  // namespace pumice::cpu
