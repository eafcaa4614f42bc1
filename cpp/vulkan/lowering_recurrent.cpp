// Lowers the operations that carry a state from row to row: Conv and Scan.
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"

namespace pumice::vulkan {

// ---------------------------------------------------------------- states
// Returns the states of an operation, one range for each slab. Returns one empty range if the operation has no state.
std::vector<GpuLowering::StateRange> GpuLowering::state_ranges(StateId state) const {
  std::vector<StateRange> ranges;
  if (state != StateId::none) {
    const std::uint64_t bytes = state_planes(run_.plan.program.states)[state_plane(state)];
    for (const Slabs::Slab& slab : run_.states.slabs) {
      const Slabs::Plane& plane = slab.planes[state_plane(state)];
      ranges.push_back({{plane.buffer.get(), plane.offset}, slab.first, slab.units, bytes / 4});
    }
  }
  if (ranges.empty()) ranges.emplace_back();
  return ranges;
}

// Binds the states that a dispatch reads and those that it writes. If the dispatch writes no state, `unused` is bound in their place,
// because each binding needs a buffer. `unused` is a range that the dispatch writes anyway.
void GpuLowering::bind_states(Dispatch& d, const StateRange& from, const StateRange& to, const Binding& unused) const {
  const auto bytes = [](const StateRange& range) { return static_cast<std::uint64_t>(range.states) * range.words * 4; };
  d.bind({from.at.buffer, from.at.offset, bytes(from)});
  d.bind(to.states > 0 ? Binding{to.at.buffer, to.at.offset, bytes(to), true} : unused);
}

// ---------------------------------------------------------------- Conv
void GpuLowering::operator()(const ConvStep& step) {
  const std::vector<StateRange> ranges = state_ranges(step.op.state);
  for (const SpanBlock& block : run_.tables.spans[static_cast<std::size_t>(step.spans)]) {
    for (const StateRange& from : ranges) {
      for (const StateRange& to : ranges) conv(step, block, from, to);
    }
  }
}

void GpuLowering::conv(const ConvStep& step, const SpanBlock& block, const StateRange& from, const StateRange& to) {
  constexpr uint kLanes = 64;
  const Conv& op = step.op;
  const std::int64_t lead = op.centred ? (op.width - 1) / 2 : 0, blocks = ceil_div(op.in.width, kLanes);
  const std::int64_t first = std::max<std::int64_t>(0, block.first - (op.width - 1 - lead)),
                     end = std::min(run_.counts.tokens, block.first + block.rows + lead);
  KeyedDispatch d = dispatch("conv", "conv", {kLanes, word(op.width)});
  d.bind(rows(op.in, {first, end - first}, false));
  const Binding out = rows(op.out, {block.first, block.rows}, true);
  d.bind(out);
  const auto [taps_at, bias_at] = bind_vectors(d, {op.taps, op.bias});
  d.bind(meta());
  bind_states(d, from, to, out);
  d.set_push(params::ConvParams{.spans_at = block.spans_at,
                                .blocks = word(blocks),
                                .width = word(op.in.width),
                                .lead = word(lead),
                                .halo = word(block.first - first),
                                .in_at = word(op.in.col),
                                .in_stride = stride(op.in),
                                .out_at = word(op.out.col),
                                .out_stride = stride(op.out),
                                .taps_at = taps_at,
                                .bias_at = bias_at,
                                .has_bias = op.bias != VectorId::none,
                                .activation = static_cast<uint>(op.activation),
                                .from_first = word(from.first),
                                .from_count = word(from.states),
                                .to_first = word(to.first),
                                .to_count = word(to.states),
                                .state_words = word(static_cast<std::int64_t>(from.words))});
  const double values = static_cast<double>(block.rows) * op.in.width;
  push(d, std::int64_t{block.spans} * blocks, values * (2 * op.width + 4), values * 8);
}

// ---------------------------------------------------------------- Scan
void GpuLowering::operator()(const ScanStep& step) {
  const std::vector<StateRange> ranges = state_ranges(step.op.state);
  const std::vector<SpanBlock>& blocks = run_.tables.spans[static_cast<std::size_t>(step.spans)];
  const ScanArea area = scan_area(step.op, blocks);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    scan_gates(step.op, blocks[b], area);
    for (const StateRange& from : ranges) {
      for (const StateRange& to : ranges) scan(step, b, area, from, to);
    }
  }
}

void GpuLowering::scan_gates(const Scan& op, const SpanBlock& block, const ScanArea& area) {
  constexpr uint kLanes = 64;
  const Block rows_of_block{block.first, block.rows};
  const std::int64_t heads = op.step.width;
  KeyedDispatch d = dispatch("scan gates", "scan_gates", {kLanes, number(op.rule)});
  d.bind(rows(op.step, rows_of_block, false));
  d.bind(rows(op.beta, rows_of_block, false));
  const auto [step_bias_at, rate_at, skip_at] = bind_vectors(d, {op.step_bias, op.rate, op.skip});
  d.bind({run_.buffers.scratch, run_.areas.scan, area.bytes, true});
  d.set_push(params::ScanGatesParams{.rows = word(block.rows),
                                     .heads = word(heads),
                                     .step_at = word(op.step.col),
                                     .step_stride = stride(op.step),
                                     .beta_at = word(op.beta.col),
                                     .beta_stride = op.beta ? stride(op.beta) : 0,
                                     .step_bias_at = step_bias_at,
                                     .rate_at = rate_at,
                                     .skip_at = skip_at,
                                     .has_step_bias = op.step_bias != VectorId::none,
                                     .has_skip = op.skip != VectorId::none,
                                     .floor = op.floor,
                                     .strength = op.strength});
  const double values = static_cast<double>(block.rows * heads);
  push(d, ceil_div(block.rows * heads, kLanes), values * 100, values * 20);
}

void GpuLowering::scan(const ScanStep& step, std::size_t block_index, const ScanArea& area, const StateRange& from, const StateRange& to) {
  const Scan& op = step.op;
  const SpanBlock& block = run_.tables.spans[static_cast<std::size_t>(step.spans)][block_index];
  const Block rows_of_block{block.first, block.rows};
  const uint cols = params::scan_cols(word(op.key_dim));
  const std::int64_t heads = op.step.width, blocks = ceil_div(op.value_dim, cols);
  KeyedDispatch d = dispatch("scan", "scan", {params::kScanLanes, number(op.rule), word(op.key_dim), cols});
  for (const View& view : {op.q, op.k, op.v}) d.bind(rows(view, rows_of_block, false));
  d.bind({run_.buffers.scratch, run_.areas.scan, area.bytes, true});
  const Binding out = rows(op.out, rows_of_block, true);
  d.bind(out);
  d.bind(meta());
  bind_states(d, from, to, out);
  d.set_push(params::ScanParams{.spans_at = block.spans_at,
                                .heads = word(heads),
                                .key_heads = word(op.key_heads),
                                .tiled = op.tiled,
                                .value_dim = word(op.value_dim),
                                .blocks = word(blocks),
                                .q_at = word(op.q.col),
                                .q_stride = stride(op.q),
                                .k_at = word(op.k.col),
                                .k_stride = stride(op.k),
                                .v_at = word(op.v.col),
                                .v_stride = stride(op.v),
                                .out_at = word(op.out.col),
                                .out_stride = stride(op.out),
                                .carry_in_at = word(static_cast<std::int64_t>(area.carry_at[block_index % 2] / 4)),
                                .carry_out_at = word(static_cast<std::int64_t>(area.carry_at[1 - block_index % 2] / 4)),
                                .from_first = word(from.first),
                                .from_count = word(from.states),
                                .to_first = word(to.first),
                                .to_count = word(to.states),
                                .state_words = word(static_cast<std::int64_t>(from.words))});
  const double numbers = static_cast<double>(heads) * op.key_dim * op.value_dim;
  push(d, std::int64_t{block.spans} * heads * blocks, static_cast<double>(block.rows) * numbers * 7,
       static_cast<double>(block.spans) * numbers * 8 + static_cast<double>(block.rows) * (op.q.width + op.k.width + 2 * op.v.width) * 4);
}

}  // namespace pumice::vulkan
