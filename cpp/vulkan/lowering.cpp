#include "vulkan/lowering.h"

#include <algorithm>
#include <set>

#include "core/checked.h"
#include "vulkan/lowering_steps.h"

namespace pumice::vulkan {

std::vector<Work> GpuLowering::work() {
  copy_rows(run_.plan.program.input, true, run_.buffers.in);
  for (const GpuStep& step : run_.plan.steps) std::visit(*this, step);
  copy_rows(run_.plan.program.output, false, run_.buffers.out);
  return std::move(work_);
}

// ---------------------------------------------------------------- views and buffers
Binding GpuLowering::rows(const View& v, const Block& block, bool written) const {
  if (!v) return {};
  const std::uint64_t row = std::uint64_t{stride(v)} * 4;
  return {run_.buffers.scratch,
          run_.areas.slots[static_cast<std::size_t>(v.slot)] + static_cast<std::uint64_t>(block.first) * row,
          static_cast<std::uint64_t>(block.count) * row,
          written,
          v.slot,
          v.col,
          v.width};
}

Binding GpuLowering::quantized_rows(const View& in, const Block& block, bool written) const {
  const std::uint64_t row = static_cast<std::uint64_t>(params::quantized_row_words(in.width)) * 4;
  return {run_.buffers.scratch, run_.areas.quantized + aligned(static_cast<std::uint64_t>(block.first) * row),
          static_cast<std::uint64_t>(block.count) * row, written};
}

void GpuLowering::bind_pages(Dispatch& d, const PageRange& range, const PageWords& words, bool written) {
  const auto pages = static_cast<std::uint64_t>(range.pages);
  d.bind({range.keys.buffer, range.keys.offset, pages * words.keys * 4, written});
  d.bind({range.values.buffer, range.values.offset, pages * words.values * 4, written});
}

std::int64_t GpuLowering::rows_per_binding(std::initializer_list<View> views) const {
  auto most = static_cast<std::int64_t>(INT32_MAX);
  for (const View& v : views) {
    if (v) most = std::min(most, static_cast<std::int64_t>(run_.device.limits.range / (std::uint64_t{stride(v)} * 4)));
  }
  return std::max<std::int64_t>(1, most);
}

std::vector<GpuLowering::Block> GpuLowering::blocks(Rows kind, std::initializer_list<View> views, bool int8) const {
  std::int64_t most = rows_per_binding(views);
  if (int8) most = std::max<std::int64_t>(64, most / 64 * 64);  // so that each block of quantized rows begins at a multiple of 256 bytes
  std::vector<Block> result;
  const std::int64_t count = run_.counts.of(kind);
  for (std::int64_t first = 0; first < count; first += most) result.push_back({first, std::min(most, count - first)});
  return result;
}

// ---------------------------------------------------------------- work
KeyedDispatch GpuLowering::dispatch(const char* what, PipelineKey key) {
  KeyedDispatch d;
  d.what = what;
  d.key = std::move(key);
  return d;
}

void GpuLowering::push(KeyedDispatch& d, std::int64_t groups, double flops, double bytes) {
  if (groups <= 0) return;
  d.groups = static_cast<std::uint64_t>(groups);
  d.flops = flops;
  d.bytes = bytes;
  work_.emplace_back(std::move(d));
}

// Copies the rows of a slot from the buffer `host` to the slot if `to_slot` is true, else from the slot to `host`. One region is enough,
// because the rows have the same stride in `host` and in the slot.
void GpuLowering::copy_rows(std::int32_t slot, bool to_slot, const Buffer* host) {
  if (slot < 0) return;
  const SlotShape& shape = run_.plan.program.slots[static_cast<std::size_t>(slot)];
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(run_.counts.of(shape.rows)) * static_cast<std::uint64_t>(slot_stride(shape.width)) * 4;
  if (bytes == 0) return;
  const std::uint64_t base = run_.areas.slots[static_cast<std::size_t>(slot)];
  work_.emplace_back(Copy{to_slot ? host : run_.buffers.scratch,
                          to_slot ? run_.buffers.scratch : host,
                          {{.srcOffset = to_slot ? 0 : base, .dstOffset = to_slot ? base : 0, .size = bytes}}});
}

// ---------------------------------------------------------------- commands and pipelines of a run
std::vector<Command> lower(const GpuRun& run, Pipelines& pipelines, const Cancel& cancel) {
  std::vector<Command> commands;
  for (Work& work : GpuLowering(run).work()) {
    if (auto* copy = std::get_if<Copy>(&work)) {
      commands.emplace_back(std::move(*copy));
    } else {
      auto& dispatch = std::get<KeyedDispatch>(work);
      dispatch.pipeline = &pipelines.get(dispatch.key, cancel);
      commands.emplace_back(static_cast<const Dispatch&>(dispatch));
    }
  }
  return commands;
}

// Lowers a decode step (1 row) and a prefill (64 rows), and collects the pipelines of their dispatches. If the program has mixtures of
// experts, this also lowers batches of 16 and 512 rows, because the tiles for experts depend on how many rows each expert gets. The page
// and the state of these runs have no memory, because nothing is executed.
std::vector<PipelineKey> pipelines_of(const GpuPlan& plan, const GpuWeights& weights, const PhysicalDevice& device, KvFormat format) {
  std::set<PipelineKey> keys;
  const auto one = [](std::size_t planes) {
    return Slabs::All{.slabs = {{.first = 0, .units = 1, .planes = std::vector<Slabs::Plane>(planes)}}, .units = 1};
  };
  const Slabs::All page = one(2 * plan.program.caches.size()), state = one(plan.program.states.size());
  std::vector<std::int32_t> batches = {1, 64};
  if (std::any_of(plan.steps.begin(), plan.steps.end(), [](const GpuStep& step) { return std::holds_alternative<ExpertsStep>(step); }))
    batches.insert(batches.end(), {16, 512});
  for (const std::int32_t rows : batches) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows)), pages(static_cast<std::size_t>(ceil_div(rows, kPageTokens)));
    const Segment text{0, rows, 0, pages};
    const Batch batch{.rows = rows, .ids = zeros, .types = zeros, .segments = {&text, 1}, .selected = std::span(zeros).first(1)};
    TableRequest request = plan.tables();
    request.range = device.limits.range;
    Tables tables;
    tables.build(request, batch);
    const Counts counts{rows, 1, 1};
    const Areas areas = place(plan, counts, tables.attends, tables.spans, tables.kept_pages, device.limits.range);
    const GpuRun run{.plan = plan,
                     .weights = weights,
                     .device = device,
                     .counts = counts,
                     .tables = tables,
                     .areas = areas,
                     .buffers = {},
                     .pages = page,
                     .states = state,
                     .format = format};
    for (Work& work : GpuLowering(run).work()) {
      if (auto* dispatch = std::get_if<KeyedDispatch>(&work)) keys.insert(std::move(dispatch->key));
    }
  }
  return {keys.begin(), keys.end()};
}

}  // namespace pumice::vulkan
