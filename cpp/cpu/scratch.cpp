#include "cpu/scratch.h"

#include <algorithm>

#include "core/checked.h"
#include "cpu/cache_store.h"
#include "cpu/steps/cut.h"

namespace pumice::cpu {
namespace {

std::uint64_t bytes_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(a, b, "cpu: scratch"));
}

}  // namespace

std::uint64_t align_line(std::uint64_t bytes) {
  const auto aligned = checked_align(bytes, kLine);
  if (!aligned) fail(ErrorKind::out_of_memory, "cpu: scratch of more bytes than can be addressed");
  return *aligned;
}

void BatchLayout::arrange(const CpuPlan& plan, const Batch& batch, int threads) {
  rows[static_cast<int>(Rows::tokens)] = batch.rows;
  rows[static_cast<int>(Rows::segments)] = static_cast<std::int64_t>(batch.segments.size());
  rows[static_cast<int>(Rows::selected)] = static_cast<std::int64_t>(batch.selected.size());

  page_runs.clear();
  first_page.clear();
  std::int64_t pages = 0;
  most_pages = most_rows = 1;
  for (std::size_t s = 0; plan.facts.takes_segments && s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    first_page.push_back(pages);
    const std::int64_t of_segment = ceil_div(std::int64_t{segment.past} + segment.rows, kPageTokens);
    pages += of_segment;
    most_pages = std::max(most_pages, of_segment);
    most_rows = std::max<std::int64_t>(most_rows, segment.rows);
    for (std::int32_t row = 0; row < segment.rows;) {
      const std::int32_t position = segment.past + row;
      const std::int32_t count = std::min(segment.rows - row, kPageTokens - position % kPageTokens);
      page_runs.push_back({static_cast<std::int32_t>(s), segment.first + row, count, position});
      row += count;
    }
  }
  first_page.push_back(pages);

  total = 0;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t at = total;
    const auto sum = checked_add(total, align_line(bytes));
    if (!sum) fail(ErrorKind::out_of_memory, "cpu: scratch of more bytes than can be addressed");
    total = *sum;
    return at;
  };
  area_at.clear();
  for (const Area& area : plan.areas) {
    const std::int64_t count = rows[static_cast<int>(area.rows)];
    area_at.push_back(take(bytes_of(area.in_blocks ? std::min(count, kTailRows) : count, area.row_bytes) + 2 * kLine));
  }
  turns_at.clear();
  for (const RopeTable& table : plan.turns) turns_at.push_back(take(bytes_of(batch.rows, std::int64_t{8} * std::ssize(table.inv_freq))));

  attends.resize(plan.attends.size());
  std::uint64_t kept = 0, partials = 0, per_thread = 0;
  if (plan.gated) per_thread = bytes_of(kTileFloats, sizeof(float));
  per_thread = std::max(per_thread, 2 * align_line(bytes_of(plan.widest_embedding, sizeof(float))));
  if (plan.widest_key > 0) per_thread = std::max(per_thread, align_line(bytes_of(scan_floats(plan.widest_key, most_rows), sizeof(float))));
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const AttendShape& shape = plan.attends[a];
    attends[a].arrange(shape, batch, threads);
    if (!shape.cached)
      kept = std::max(kept, bytes_of(pages * shape.kv_heads, kv_page_bytes(KvFormat::f32, shape.key_dim, shape.value_dim)));
    partials = std::max(partials, bytes_of(attends[a].partial_floats, sizeof(float)));
    const std::int64_t own = attends[a].split ? 0 : attends[a].most_chunks * kMaxQueries * (shape.value_dim + 2);
    per_thread = std::max(per_thread, align_line(bytes_of(most_pages, sizeof(std::uint8_t*))) + align_line(bytes_of(own, sizeof(float))));
  }
  kept_at = take(kept);
  partials_at = take(partials);
  // The memory of each thread is padded, so that no two threads write to the same pair of neighbouring cache lines.
  thread_bytes = align_line(per_thread) + 2 * kLine;
  threads_at = take(bytes_of(static_cast<std::int64_t>(thread_bytes), threads));
}

std::int64_t scan_floats(std::int32_t key_dim, std::int64_t rows) {
  return 2 * round_up(rows, kStripCols) + 2 * std::int64_t{key_dim} * kStripCols;
}

void ExpertPairs::reserve(std::int64_t of_rows, std::int32_t most_chosen, std::int32_t experts) {
  const auto pairs = static_cast<std::size_t>(of_rows * most_chosen);
  for (std::vector<std::int32_t>* list : {&rows, &choices, &places}) list->resize(pairs);
  ends.resize(static_cast<std::size_t>(experts) + 1);
  pieces.reserve(pairs / static_cast<std::size_t>(kBlockRows) + static_cast<std::size_t>(experts));
}

// Rounds `needed` up to a multiple of a step. The step is 4 KiB, or for larger sizes between a sixteenth and an eighth of `needed`. Because
// of the step, batches that grow slowly do not allocate each time.
std::uint64_t scratch_capacity(std::uint64_t needed) {
  std::uint64_t step = 4096;
  while (step * 16 <= needed) step *= 2;
  return (needed + step - 1) / step * step;
}

void ScratchSpace::fit() {
  constexpr std::uint64_t kWorthGivingBack = 32 << 20;
  const std::uint64_t wanted = scratch_capacity(layout.total);
  // Scratch memory above 32 MiB is freed at the sixteenth run in a row that needs less than a quarter of it.
  far_too_large = scratch.bytes() > kWorthGivingBack && wanted < scratch.bytes() / 4 ? far_too_large + 1 : 0;
  if (wanted <= scratch.bytes() && far_too_large < 16) return;
  scratch = Buffer();
  far_too_large = 0;
  if (wanted > kWorthGivingBack) check_memory(wanted, "the scratch memory of a run");
  scratch = Buffer(wanted, "the scratch memory of a run");
}
}  // namespace pumice::cpu
