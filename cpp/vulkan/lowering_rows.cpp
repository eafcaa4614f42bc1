// Lowers all other steps: embedding, norms, elementwise products, and the steps at the end of programs (Select, Pool, LogProb, Top).
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"

namespace pumice::vulkan {

// ---------------------------------------------------------------- embedding
void GpuLowering::operator()(const Embed& op) {
  gather(op.out, op.tokens, run_.tables.ids_at, op.scale, false);
  if (op.positions != MatrixId::none) gather(op.out, op.positions, run_.tables.positions_at, 1.0f, true);
  if (op.types != MatrixId::none) gather(op.out, op.types, run_.tables.types_at, 1.0f, true);
}

void GpuLowering::gather(const View& out, MatrixId table, uint index_at, float scale, bool add) {
  const GpuMatrix& m = run_.weights[table];
  for (const Block block : blocks(Rows::tokens, {out})) {
    for (const RowRange& piece : m.pieces) {
      KeyedDispatch d = dispatch("embed", "gather", {64, static_cast<uint>(m.format), add});
      d.bind(bind(piece));
      d.bind(meta());
      d.bind(rows(out, block, true));
      d.set_push(params::GatherParams{.cols = word(m.cols),
                                      .weights_at = 0,
                                      .chunk_first = word(piece.first),
                                      .chunk_rows = word(piece.rows),
                                      .index_at = index_at + word(block.first),
                                      .out_at = word(out.col),
                                      .out_stride = stride(out),
                                      .scale = scale});
      push(d, block.count, static_cast<double>(block.count) * static_cast<double>(m.cols) * 4,
           static_cast<double>(block.count * (m.row_words + m.cols)) * 4);
    }
  }
}

// ---------------------------------------------------------------- norm
void GpuLowering::operator()(const Norm& op) {
  const std::int64_t width = op.group > 0 ? op.group : op.in.width, heads = op.in.width / width;
  const uint row_lanes = params::norm_lanes(word(width), lanes(256));
  for (const Block block : blocks(rows_of(op.in), {op.in, op.out, op.add})) {
    KeyedDispatch d = dispatch("norm", "norm",
                               {row_lanes, number(op.kind), op.weight != VectorId::none, op.bias != VectorId::none,
                                static_cast<bool>(op.add), params::norm_batch(word(width), row_lanes)});
    d.bind(rows(op.in, block, false));
    d.bind(rows(op.out, block, true));
    d.bind(rows(op.add, block, false));
    const auto [weight_at, bias_at] = bind_vectors(d, {op.weight, op.bias});
    d.set_push(params::NormParams{.heads = word(heads),
                                  .width = word(width),
                                  .in_at = word(op.in.col),
                                  .in_stride = stride(op.in),
                                  .out_at = word(op.out.col),
                                  .out_stride = stride(op.out),
                                  .add_at = word(op.add.col),
                                  .add_stride = op.add ? stride(op.add) : 0,
                                  .weight_at = weight_at,
                                  .bias_at = bias_at,
                                  .head_values = op.per_column ? word(width) : 0,
                                  .eps = op.eps});
    const double values = static_cast<double>(block.count) * op.in.width;
    push(d, block.count * heads, values * 8, values * 8);
  }
}

// ---------------------------------------------------------------- elementwise products
void GpuLowering::operator()(const Multiply& op) {
  constexpr uint kLanes = 64;
  const std::int64_t per_row = ceil_div(op.a.width, std::int64_t{kLanes} * params::kMultiplyPerLane);
  for (const Block block : blocks(rows_of(op.a), {op.a, op.b, op.out})) {
    KeyedDispatch d = dispatch("multiply", "multiply", {kLanes});
    d.bind(rows(op.a, block, false));
    d.bind(rows(op.b, block, false));
    d.bind(rows(op.out, block, true));
    d.set_push(params::MultiplyParams{.blocks = word(per_row),
                                      .width = word(op.a.width),
                                      .span = op.b ? word(op.a.width / op.b.width) : 0,
                                      .a_at = word(op.a.col),
                                      .a_stride = stride(op.a),
                                      .b_at = word(op.b.col),
                                      .b_stride = op.b ? stride(op.b) : 0,
                                      .out_at = word(op.out.col),
                                      .out_stride = stride(op.out),
                                      .activation = static_cast<uint>(op.activation),
                                      .scale = op.scale});
    const double values = static_cast<double>(block.count) * op.a.width;
    push(d, block.count * per_row, values * 8, values * 12);
  }
}

// ---------------------------------------------------------------- ends of programs
void GpuLowering::operator()(const Select& op) {
  const std::int64_t source_rows = rows_per_binding({op.in});
  const std::int64_t per_row = ceil_div(op.in.width, std::int64_t{64} * params::kSelectPerLane);
  for (const Block block : blocks(Rows::selected, {op.out})) {
    for (std::int64_t first = 0; first < run_.counts.tokens; first += source_rows) {
      const Block source{first, std::min(source_rows, run_.counts.tokens - first)};
      KeyedDispatch d = dispatch("select", "select", {64});
      d.bind(rows(op.in, source, false));
      d.bind(rows(op.out, block, true));
      d.bind(meta());
      d.set_push(params::SelectParams{.blocks = word(per_row),
                                      .width = word(op.in.width),
                                      .in_at = word(op.in.col),
                                      .in_stride = stride(op.in),
                                      .out_at = word(op.out.col),
                                      .out_stride = stride(op.out),
                                      .rows_at = run_.tables.selected_at + word(block.first),
                                      .chunk_first = word(source.first),
                                      .chunk_rows = word(source.count)});
      const double values = static_cast<double>(block.count) * op.in.width;
      push(d, block.count * per_row, values, values * 8);
    }
  }
}

void GpuLowering::operator()(const Pool& op) {
  const std::int64_t per_segment = ceil_div(op.in.width, params::kPoolColumns), chunk_rows = rows_per_binding({op.in});
  for (const Block block : blocks(Rows::segments, {op.out})) {
    for (std::int64_t first = 0; first < run_.counts.tokens; first += chunk_rows) {
      const Block chunk{first, std::min(chunk_rows, run_.counts.tokens - first)};
      KeyedDispatch d = dispatch("pool", "pool", {64, number(op.kind)});
      d.bind(rows(op.in, chunk, false));
      d.bind(rows(op.out, block, true));
      d.bind(meta());
      d.set_push(params::PoolParams{.blocks = word(per_segment),
                                    .width = word(op.in.width),
                                    .in_at = word(op.in.col),
                                    .in_stride = stride(op.in),
                                    .out_at = word(op.out.col),
                                    .out_stride = stride(op.out),
                                    .segments_at = run_.tables.segments_at + params::kSegmentWords * word(block.first),
                                    .chunk_first = word(chunk.first),
                                    .chunk_rows = word(chunk.count)});
      const double values = static_cast<double>(chunk.count) * op.in.width;
      push(d, block.count * per_segment, values, values * 4);
    }
  }
}

void GpuLowering::operator()(const LogProb& op) {
  for (const Block block : blocks(Rows::tokens, {op.logits, op.out})) {
    KeyedDispatch d = dispatch("log_prob", "log_prob", {lanes(128)});
    d.bind(rows(op.logits, block, false));
    d.bind(rows(op.out, block, true));
    d.bind(meta());
    d.set_push(params::LogProbParams{.width = word(op.logits.width),
                                     .in_at = word(op.logits.col),
                                     .in_stride = stride(op.logits),
                                     .out_at = word(op.out.col),
                                     .out_stride = stride(op.out),
                                     .ids_at = run_.tables.ids_at + word(block.first)});
    const double values = static_cast<double>(block.count) * op.logits.width;
    push(d, block.count, values * 8, values * 4);
  }
}

// Stage 0 ranks the logits of each block of the vocabulary, and stage 1 ranks the results of stage 0.
void GpuLowering::operator()(const TopStep& step) {
  static_assert(params::kTopHead == kTopHead);
  const Top& op = step.op;
  const std::int64_t per_row = top_blocks(op), most = top_rows(run_.plan.program, op, run_.device.limits.range);
  for (std::int64_t first = 0; first < run_.counts.tokens; first += most) {
    const Block block{first, std::min(most, run_.counts.tokens - first)};
    const std::uint64_t found = top_found_bytes(op, block.count);
    for (const uint stage : {0u, 1u}) {
      KeyedDispatch d = dispatch("top", "top", {lanes(128), stage, word(op.k)});
      d.bind(rows(op.logits, block, false));
      d.bind(meta());
      d.bind({run_.buffers.scratch, run_.areas.top, found, stage == 0});
      d.bind(rows(op.out, block, true));
      d.set_push(
          params::TopParams{.blocks = word(per_row),
                            .width = word(op.logits.width),
                            .logits_at = word(op.logits.col),
                            .logits_stride = stride(op.logits),
                            .rows_at = run_.tables.tops_at[static_cast<std::size_t>(step.table)] + params::kTopRowWords * word(block.first),
                            .found_at = 0});
      const double values = static_cast<double>(block.count) * (stage == 0 ? op.logits.width : static_cast<double>(per_row) * op.k);
      push(d, block.count * (stage == 0 ? per_row : 1), values * 64, values * 8);
    }
  }
}

}  // namespace pumice::vulkan
