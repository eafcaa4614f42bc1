// Steps that depend on positions. They apply rope, or store keys and values in pages.
#include <cmath>
#include <span>

#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

const RopeTable& table_of(const Run& run, std::int32_t turns) { return run.plan.turns[static_cast<std::size_t>(turns)]; }

// Returns the address of the cosines and sines for row r.
float* turns_row(const Run& run, std::int32_t turns, std::int64_t r) {
  const auto pairs = static_cast<std::int64_t>(table_of(run, turns).inv_freq.size());
  return reinterpret_cast<float*>(run.space.scratch.data() + run.layout().turns_at[static_cast<std::size_t>(turns)]) + r * 2 * pairs;
}

// Divides the batch's page runs (PageRun) into tasks. The rows of page runs have `width` floats.
Cut cut_page_runs(const Run& run, std::int64_t width) {
  const auto runs = static_cast<std::int64_t>(run.layout().page_runs.size());
  const std::int64_t floats = std::max<std::int64_t>(1, run.batch.rows * width / std::max<std::int64_t>(1, runs));
  Cut cut{.rows = {0, runs}};
  cut.per_task = std::max({std::int64_t{1}, kTaskFloats / floats, ceil_div(runs, kMaxTasks)});
  cut.tasks = ceil_div(runs, cut.per_task);
  return cut;
}
std::span<const PageRun> page_runs(const Run& run, const Cut& cut, std::int64_t index) {
  const Range runs = cut.task_rows(index);
  return std::span(run.layout().page_runs).subspan(static_cast<std::size_t>(runs.first), static_cast<std::size_t>(runs.count));
}
std::int64_t page_of(const Run& run, const PageRun& rows) {
  return run.layout().first_page[static_cast<std::size_t>(rows.segment)] + rows.position / kPageTokens;
}

void turn(const Run& run, const Turned& s, std::int64_t r, std::int64_t position) {
  float* x = run.row(s.x, r);
  if (s.turns >= 0) {
    const RopeTable& table = table_of(run, s.turns);
    const int pairs = static_cast<int>(table.inv_freq.size());
    const float* cos = turns_row(run, s.turns, r);
    for (std::int32_t c = 0; c < s.x.width; c += s.head_dim) {
      run.kernels.rows.rope(x + c, cos, cos + pairs, 2 * pairs, table.interleaved);
    }
  }
  const std::int64_t lengths = s.temperature_length > 0 ? (position + s.temperature_offset) / s.temperature_length : 0;
  if (lengths == 0) return;
  const double factor = 1 + s.temperature * std::log1p(static_cast<double>(lengths));
  run.kernels.rows.scale_add(x, static_cast<float>(factor), nullptr, nullptr, s.x.width, x);
}

// Stores the keys and values of a page run. page_of_head(head) returns the address of the kv head's page.
template <class PageOfHead>
void store_heads(const Run& run, const PageRun& rows, KvFormat format, const View& k, const View& v, const CacheShape& shape,
                 const PageOfHead& page_of_head) {
  for (int head = 0; head < shape.heads; ++head) {
    run.kernels.rows.kv_store(format, shape.key_dim, shape.value_dim, run.row(k, rows.first) + head * shape.key_dim,
                              run.row(v, rows.first) + head * shape.value_dim, run.stride(k), run.stride(v), rows.position % kPageTokens,
                              rows.rows, page_of_head(head));
  }
}

}  // namespace

Cut cut(const Run& run, const TurnsStep& s) {
  return cut_rows(run.rows_of(Rows::tokens), 32 * static_cast<std::int64_t>(table_of(run, s.turns).inv_freq.size()));
}
void task(const Run& run, const TurnsStep& s, const Cut& cut, std::int64_t index, int) {
  const RopeTable& rope = table_of(run, s.turns);
  const std::size_t pairs = rope.inv_freq.size();
  const Range rows = cut.task_rows(index);
  RopeFrequencies frequencies(rope);
  std::size_t at = 0;
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    const std::int64_t own = run.position_of(r, at);  // updates `at`
    const std::int64_t turned = own + run.batch.segments[at].ahead;
    const std::span<const float> inv_freq = frequencies.of(std::max<std::int64_t>(run.batch.segments[at].length, turned + 1));
    const auto position = static_cast<float>(turned);
    float* cos = turns_row(run, s.turns, r);
    float* sin = cos + pairs;
    for (std::size_t j = 0; j < pairs; ++j) {
      // The product position * inv_freq[j] is rounded to float32, as it was when the models were trained.
      const double angle = position * inv_freq[j];
      cos[j] = static_cast<float>(std::cos(angle)) * rope.magnitude;
      sin[j] = static_cast<float>(std::sin(angle)) * rope.magnitude;
    }
  }
}

Cut cut(const Run& run, const RopeStoreStep& s) {
  std::int64_t width = s.shape.heads > 0 ? s.store.k.width + s.store.v.width : 0;
  for (const Turned& rope : s.ropes) width += rope.x.width;
  return cut_page_runs(run, width);
}
void task(const Run& run, const RopeStoreStep& s, const Cut& cut, std::int64_t index, int) {
  for (const PageRun& rows : page_runs(run, cut, index)) {
    const std::int32_t position = rows.position + run.batch.segments[static_cast<std::size_t>(rows.segment)].ahead;
    for (const Turned& rope : s.ropes) {
      for (std::int32_t r = 0; r < rows.rows; ++r) turn(run, rope, rows.first + r, position + r);
    }
    if (s.shape.heads == 0) continue;
    std::uint8_t* page = run.space.pages[static_cast<std::size_t>(page_of(run, rows))];
    store_heads(run, rows, run.store->format(), s.store.k, s.store.v, s.shape,
                [&](int head) { return page + run.store->offset(s.store.cache, head); });
  }
}

std::uint8_t* kept_page(const Run& run, const Attend& op, std::int64_t page, int head) {
  return run.space.scratch.data() + run.layout().kept_at +
         static_cast<std::uint64_t>((page * op.kv_heads + head) * kv_page_bytes(KvFormat::f32, op.key_dim, op.value_dim));
}
Cut cut(const Run& run, const KeepStep& s) { return cut_page_runs(run, s.op.k.width + s.op.v.width); }
void task(const Run& run, const KeepStep& s, const Cut& cut, std::int64_t index, int) {
  for (const PageRun& rows : page_runs(run, cut, index)) {
    store_heads(run, rows, KvFormat::f32, s.op.k, s.op.v, {s.op.kv_heads, s.op.key_dim, s.op.value_dim},
                [&](int head) { return kept_page(run, s.op, page_of(run, rows), head); });
  }
}

}  // namespace pumice::cpu
