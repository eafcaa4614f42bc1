#include "engine/prefill.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace pumice::engine {

void check_text(const Runtime& runtime, std::span<const std::int32_t> ids) {
  require(!ids.empty(), "there are no tokens");
  require(runtime.pages, "this model keeps no key-value cache: it cannot continue a text");
  runtime.check_ids(ids, "text", 0);
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count > runtime.n_ctx)
    fail(ErrorKind::context_length, "the text has ", count, " tokens, the context holds ", runtime.n_ctx,
         ": shorten it, or load with a larger n_ctx=");
  runtime.pages->check_fits(count);
}

std::int32_t claim_pages(Runtime& runtime, PageTable& table, std::span<const std::int32_t> ids, bool reuse, const Cancel& cancel) {
  PagePool& pool = *runtime.pages;
  const auto count = static_cast<std::int64_t>(ids.size());
  for (;;) {
    cancel.check();
    const std::uint64_t seen = pool.changes();
    if (const auto reused = pool.acquire(table, ids, reuse, 0, runtime.rope_stage(count))) return *reused;
    pool.check_fits(count);  // the device may have refused to grow
    pool.wait(seen, 20);
  }
}

void prefill(Runtime& runtime, std::span<const std::int32_t> ids, bool all, const Each& each, const Cancel& cancel, const Held& held) {
  check_text(runtime, ids);
  PagePool& pool = *runtime.pages;
  const auto count = static_cast<std::int64_t>(ids.size());
  PageTable table;
  std::int64_t done = claim_pages(runtime, table, ids, !all, cancel);
  const std::size_t width = static_cast<std::size_t>(runtime.pipeline.hidden_size());
  std::vector<float> hidden;
  std::vector<std::int32_t> selected;
  while (done < count) {
    cancel.check();
    const auto rows = static_cast<std::int32_t>(std::min<std::int64_t>(runtime.pace.rows(), count - done));
    selected.clear();
    for (std::int32_t row = all ? 0 : rows - 1; row < rows; ++row) selected.push_back(row);
    hidden.resize(selected.size() * width);
    const Segment segment{.first = 0,
                          .rows = rows,
                          .past = static_cast<std::int32_t>(done),
                          .pages = table.pages(),
                          .length = static_cast<std::int32_t>(count)};
    const Batch batch{.rows = rows, .ids = ids.subspan(done, rows), .segments = {&segment, 1}, .selected = selected};
    const auto spaces = runtime.spaces.take(Crew::team, cancel);
    if (!runtime.body(spaces[0], batch, hidden, cancel)) continue;
    if (each && (all || done + rows == count)) each(spaces[0], all ? done : count - 1, hidden);
    done += rows;
    pool.publish(table, ids.first(done));
  }
  if (held) held(table);
  pool.release(table, ids);
}

}  // namespace pumice::engine
