// Steps at the end of a program. They select rows, pool each segment into one vector, or compute results from logits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "core/top.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {

Cut cut(const Run& run, const SelectStep& s) { return cut_rows(run.rows_of(Rows::selected), s.out.width); }
void task(const Run& run, const SelectStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index);
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    std::memcpy(run.row(s.out, r), run.row(s.in, run.batch.selected[static_cast<std::size_t>(r)]),
                static_cast<std::size_t>(s.out.width) * sizeof(float));
  }
}

constexpr std::int64_t kSixteen = 16;  // number of lanes of the kernels

Cut cut(const Run& run, const PoolStep& s) {
  Cut cut{.rows = run.rows_of(Rows::segments)};
  if (cut.rows.count == 0) return cut;
  const std::int64_t rows_each = ceil_div(std::max(1, run.batch.rows), cut.rows.count);
  cut.per_task = std::max<std::int64_t>(1, kTaskFloats / (s.in.width * rows_each));
  // The columns of a long segment are divided among several tasks. Otherwise a few texts with thousands of columns (sparse vectors) would
  // make too few tasks. cut.groups is the number of sets of sixteen columns in a task. With at least 4 sets, a task reads at least 256
  // consecutive bytes of each row.
  cut.groups = ceil_div(s.in.width, kSixteen);
  if (cut.per_task == 1) cut.groups = std::min(cut.groups, std::max<std::int64_t>(4, kTaskFloats / rows_each / kSixteen));
  cut.tasks_of_rows = ceil_div(s.in.width, kSixteen * cut.groups);
  cut.tasks = ceil_div(cut.rows.count, cut.per_task) * cut.tasks_of_rows;
  return cut;
}
void task(const Run& run, const PoolStep& s, const Cut& cut, std::int64_t index, int) {
  const Range segments = cut.task_rows(index / cut.tasks_of_rows);
  const std::int64_t columns = kSixteen * cut.groups, col = index % cut.tasks_of_rows * columns;
  for (std::int64_t i = segments.first; i < segments.first + segments.count; ++i) {
    const Segment& segment = run.batch.segments[static_cast<std::size_t>(i)];
    run.kernels.rows.pool(run.row(s.in, segment.first) + col, run.stride(s.in), segment.prompt, segment.rows,
                          std::min(columns, s.in.width - col), s.kind, run.row(s.out, i) + col);
  }
}

Cut cut(const Run& run, const LogProbStep& s) { return cut_rows(run.rows_of(Rows::tokens), s.logits.width); }
void task(const Run& run, const LogProbStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index);
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    const float* logits = run.row(s.logits, r);
    const double sum = run.kernels.rows.log_sum_exp(logits, s.logits.width);
    *run.row(s.out, r) = static_cast<float>(static_cast<double>(logits[run.batch.ids[static_cast<std::size_t>(r)]]) - sum);
  }
}

namespace {

// Writes one row of Top's output (core/top.h). The loop keeps the `ranked` largest logits so far, in order. Nearly every later logit is
// smaller than all of these, so the loop skips whole blocks of logits. `allowed` has a bit for each id; if `allowed` is null, all ids are
// allowed.
void top_row(const RowKernels& kernels, const Top& op, std::int32_t ranked, const float* logits, std::span<const std::int32_t> reported,
             const std::uint32_t* allowed, float* out) {
  const auto bits = [](std::int32_t word) { return std::bit_cast<float>(word); };
  const std::int32_t width = op.logits.width, k = op.k;
  std::fill_n(out, op.out.width, 0.0f);
  float *largest = out + kTopHead, *ids = largest + k;
  std::transform(reported.begin(), reported.end(), ids + k, [&](std::int32_t id) { return logits[id]; });
  std::int32_t not_finite = 0, first = -1, count = 0;
  for (std::int64_t id = 0; id < width; ++id) {
    if (count == ranked && id % kSkip == 0) id += kernels.skip(logits + id, width - id, largest[ranked - 1]);
    if (id == width) break;
    const float x = logits[id];
    const auto at_id = static_cast<std::int32_t>(id);
    if (!std::isfinite(x) && not_finite++ == 0) first = at_id;
    if (count == ranked && x <= largest[ranked - 1]) continue;
    if (allowed != nullptr && (allowed[id / 32] >> (id % 32) & 1u) == 0) continue;
    if (std::binary_search(reported.begin(), reported.end(), at_id)) continue;
    if (count < ranked) ++count;
    std::int32_t at = count - 1;
    for (; at > 0 && largest[at - 1] < x; --at) {
      largest[at] = largest[at - 1];
      ids[at] = ids[at - 1];
    }
    largest[at] = x;
    ids[at] = bits(at_id);
  }
  out[0] = bits(not_finite);
  out[1] = bits(first);
  out[2] = not_finite > 0 ? logits[first] : 0.0f;
  out[3] = bits(count);
  for (std::int32_t i = count; i < k; ++i) {
    largest[i] = std::numeric_limits<float>::lowest();
    ids[i] = bits(-1);
  }
}

}  // namespace

Cut cut(const Run& run, const TopStep& s) { return cut_rows(run.rows_of(Rows::tokens), s.op.logits.width); }
void task(const Run& run, const TopStep& s, const Cut& cut, std::int64_t index, int) {
  const std::span<const std::int32_t> ranked = run.batch.ranked;
  const Range rows = cut.task_rows(index);
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    top_row(run.kernels.rows, s.op, ranked.empty() ? s.op.k : ranked[static_cast<std::size_t>(r)], run.row(s.op.logits, r), run.reported(r),
            run.allowed(r), run.row(s.op.out, r));
  }
}

}  // namespace pumice::cpu
