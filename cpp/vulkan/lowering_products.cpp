// Lowers products with weights, and the rounding of activations to 8 bits that some of these products need.
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"

namespace pumice::vulkan {
namespace {

PipelineKey linear_pipeline(const PhysicalDevice& device, Form form, std::int64_t tile_rows, uint rows, Format format, Format format2,
                            bool gated, bool vectors, LinearTile& tile) {
  // `few` selects the shader matvec. It is always used with kRowsOfPairs, because each pair (a row and one of its experts) needs the matrix
  // of its own expert, and neighbouring pairs rarely have the same expert. So a tile of several pairs would save no reads.
  const bool few = rows == params::kRowsListed ? listed_few(tile_rows) : rows == params::kRowsOfPairs || tile_rows <= kFewRows;
  std::string shader = form == Form::cooperative ? "gemm_coopmat" : few ? "matvec" : "gemm";
  if (form == Form::int8) shader += "_i8";
  tile = rows == params::kRowsListed ? listed_tile(device, form, tile_rows)
         : form == Form::cooperative ? cooperative_tile(device.cooperative, device.limits, tile_rows, gated)
         : few                       ? tile_for(kMatvecTiles, rows == params::kRowsOfPairs ? 1 : tile_rows)
                                     : tile_for(kGemmTiles, tile_rows);
  PipelineKey key{std::move(shader),
                  {tile.lanes, static_cast<uint>(format), static_cast<uint>(format2), gated, vectors, tile.tokens, tile.outputs, rows}};
  if (form == Form::cooperative) {
    const CooperativeShape& shape = device.cooperative;
    key.constants.insert(key.constants.end(), {shape.m, shape.n, shape.k, shape.subgroup});
    key.subgroup = shape.subgroup;
  }
  return key;
}

}  // namespace

// ---------------------------------------------------------------- pieces of matrices
std::vector<GpuLowering::Strip> GpuLowering::strips(const GpuMatrix& stack) {
  std::vector<Strip> all;
  const std::int64_t each = stack.rows_each();
  for (const RowRange& piece : stack.pieces) {
    const bool whole = piece.rows % each == 0;
    all.push_back({.stack = &stack,
                   .piece = &piece,
                   .matrix_first = piece.first / each,
                   .matrices = whole ? piece.rows / each : 1,
                   .first = whole ? 0 : piece.first % each,
                   .rows = whole ? each : piece.rows});
  }
  return all;
}

std::vector<std::pair<GpuLowering::Strip, GpuLowering::Strip>> GpuLowering::strips(const GpuMatrix& stack, const GpuMatrix& stack2) {
  std::vector<std::pair<Strip, Strip>> all;
  for (Strip a : strips(stack)) {
    for (Strip b : strips(stack2)) {
      const std::int64_t matrix = std::max(a.matrix_first, b.matrix_first), row = std::max(a.first, b.first),
                         matrices = std::min(a.matrix_first + a.matrices, b.matrix_first + b.matrices) - matrix,
                         rows = std::min(a.first + a.rows, b.first + b.rows) - row;
      if (matrices <= 0 || rows <= 0) continue;
      auto& [first, second] = all.emplace_back(a, b);
      for (Strip* strip : {&first, &second}) {
        strip->matrix_first = matrix, strip->matrices = matrices;
        strip->first = row, strip->rows = rows;
      }
    }
  }
  return all;
}

// ---------------------------------------------------------------- Linear, GatedLinear, HeadLinear
void GpuLowering::operator()(const Linear& op) {
  const params::LinearParams end{.activation = static_cast<uint>(op.activation),
                                 .scale = op.scale,
                                 .softcap = op.softcap,
                                 .alpha_p = op.alpha_p,
                                 .alpha_n = op.alpha_n};
  std::int32_t col = 0;
  bool quantized = false;
  for (const LinearPart& part : op.parts) {
    const GpuMatrix& m = run_.weights[part.weight];
    const Form form = form_of(run_.counts.of(rows_of(op.in)), takes_int8(m.format, m.rounding), op.precise);
    if (form == Form::int8 && !quantized) quantize(op.in), quantized = true;
    for (const Block block : blocks(rows_of(op.in), {op.in, op.out, op.residual}, form == Form::int8)) {
      for (const Strip& w : strips(m)) {
        const auto rows = static_cast<std::int32_t>(w.rows), at = col + static_cast<std::int32_t>(w.first);
        Product p{.what = "linear",
                  .in = activations(op.in, block, form),
                  .out = rows_at({op.out.slot, op.out.col + at, rows}, block, true),
                  .tokens = block.count,
                  .tile_rows = block.count,
                  .bias = part.bias,
                  .form = form,
                  .end = end};
        if (op.residual) p.residual = rows_at({op.residual.slot, op.residual.col + at, rows}, block, false);
        product(p, w, {});
      }
    }
    col += static_cast<std::int32_t>(m.rows);
  }
}

void GpuLowering::operator()(const GatedLinear& op) {
  const GpuMatrix &gate = run_.weights[op.gate], &up = run_.weights[op.up];
  const Form form =
      form_of(run_.counts.of(rows_of(op.in)), takes_int8(gate.format, gate.rounding) && takes_int8(up.format, up.rounding), false);
  if (form == Form::int8) quantize(op.in);
  for (const Block block : blocks(rows_of(op.in), {op.in, op.out}, form == Form::int8)) {
    for (const auto& [w, w2] : strips(gate, up)) {
      const View out{op.out.slot, op.out.col + static_cast<std::int32_t>(w.first), static_cast<std::int32_t>(w.rows)};
      product({.what = "gated linear",
               .in = activations(op.in, block, form),
               .out = rows_at(out, block, true),
               .tokens = block.count,
               .tile_rows = block.count,
               .bias = op.gate_bias,
               .bias2 = op.up_bias,
               .form = form,
               .end = {.activation = static_cast<uint>(op.activation), .scale = 1}},
              w, w2);
    }
  }
}

void GpuLowering::operator()(const HeadLinear& op) {
  const GpuMatrix& stack = run_.weights[op.weight];
  const Form form = form_of(run_.counts.of(rows_of(op.in)), takes_int8(stack.format, stack.rounding), false);
  if (form == Form::int8) quantize(op.in);
  for (const Block block : blocks(rows_of(op.in), {op.in, op.out}, form == Form::int8)) {
    for (const Strip& w : strips(stack)) {
      Product p{.what = "head linear",
                .in = activations(op.in, block, form),
                .out = rows_at(op.out, block, true),
                .rows = params::kRowsOfHeads,
                .tokens = block.count,
                .tile_rows = block.count,
                .form = form,
                .end = {.scale = 1, .in_step = word(op.in_step), .out_step = word(op.out_step)}};
      p.out.at += word(w.first);
      product(p, w, {});
    }
  }
}

GpuLowering::RowsAt GpuLowering::rows_at(const View& v, const Block& block, bool written) const {
  return {rows(v, block, written), word(v.col), stride(v)};
}
GpuLowering::RowsAt GpuLowering::activations(const View& in, const Block& block, Form form) const {
  if (form != Form::int8) return rows_at(in, block, false);
  return {quantized_rows(in, block, false), 0, word(params::quantized_row_words(in.width))};
}

void GpuLowering::product(const Product& p, const Strip& w, const Strip& w2) {
  const bool gated = w2.stack != nullptr, listed = p.rows == params::kRowsListed, stacked = p.rows != params::kRowsAll;
  const Format format = w.stack->format, format2 = gated ? w2.stack->format : format;
  const std::int64_t cols = w.stack->cols, matrices = w.stack->experts;
  const bool vectors = p.form == Form::int8 || (p.in.at % 4 == 0 && p.end.in_step % 4 == 0);
  LinearTile tile{};
  KeyedDispatch d = dispatch(p.what, linear_pipeline(run_.device, p.form, p.tile_rows, p.rows, format, format2, gated, vectors, tile));
  d.bind(bind(*w.piece));
  d.bind(p.in.binding);
  d.bind(p.out.binding);
  const auto [bias_at, bias2_at] = bind_vectors(d, {p.bias, p.bias2});
  d.bind(p.residual.binding);
  d.bind(gated ? bind(*w2.piece) : Binding{});
  d.bind(p.route.binding);
  const std::int64_t tiles = listed ? params::list_tiles(p.tokens, matrices, tile.tokens) : ceil_div(p.tokens, tile.tokens);
  params::LinearParams push_params = p.end;
  push_params.tokens = word(listed ? tiles * tile.tokens : p.tokens);
  push_params.outputs = word(w.rows);
  push_params.cols = word(cols);
  push_params.weights_at = word(w.at());
  push_params.weights2_at = gated ? word(w2.at()) : 0;
  push_params.in_at = p.in.at;
  push_params.in_stride = p.in.stride;
  push_params.out_at = p.out.at;
  push_params.out_stride = p.out.stride;
  push_params.bias_at = bias_at + word(w.first);
  push_params.bias2_at = bias2_at + word(w.first);
  push_params.residual_at = p.residual.at;
  push_params.residual_stride = p.residual.stride;
  push_params.has |= (p.bias != VectorId::none ? params::kHasBias : 0) | (p.bias2 != VectorId::none ? params::kHasBias2 : 0) |
                     (p.residual.stride > 0 ? params::kHasResidual : 0);
  push_params.matrices = word(matrices);
  push_params.matrix_rows = word(w.stack->rows_each());
  push_params.matrix_first = word(w.matrix_first);
  push_params.matrix_count = word(w.matrices);
  push_params.route_at = p.route.at;
  push_params.route_stride = p.route.stride;
  d.set_push(push_params);
  // Estimates the number of rows that this dispatch multiplies by a matrix (`tokens`) and the number of matrices that it reads (`read`).
  // The estimate assumes that all experts have equally many pairs.
  const double share = static_cast<double>(w.matrices) / static_cast<double>(matrices), pairs = static_cast<double>(p.tokens) * share;
  const bool heads = p.rows == params::kRowsOfHeads;
  const double tokens = heads ? static_cast<double>(p.tokens * w.matrices) : stacked ? pairs : static_cast<double>(p.tokens);
  const double read = stacked && !heads ? std::min(static_cast<double>(w.matrices), pairs) : static_cast<double>(w.matrices);
  const double rows = static_cast<double>(w.rows) * (gated ? 2 : 1);
  const std::int64_t outputs = gated ? tile.outputs / 2 : tile.outputs;
  const std::int64_t weight_words = w.rows * w.stack->row_words + (gated ? w2.rows * w2.stack->row_words : 0);
  push(d, tiles * ceil_div(w.rows, outputs) * (heads ? w.matrices : 1), 2 * rows * tokens * static_cast<double>(cols),
       read * static_cast<double>(weight_words) * 4 + tokens * (static_cast<double>(cols) + rows) * 4);
}

Form GpuLowering::form_of(std::int64_t rows, bool int8, bool precise) const {
  if (precise) return Form::floats;
  if (run_.plan.variants.cooperative_matrix && rows > kFewRows) return Form::cooperative;
  return run_.plan.variants.integer_dot && int8 ? Form::int8 : Form::floats;
}

// ---------------------------------------------------------------- 8-bit activations
void GpuLowering::quantize(const View& in) {
  for (const Block block : blocks(rows_of(in), {in}, true))
    quantize(rows_at(in, block, false), quantized_rows(in, block, true), block.count, in.width);
}

void GpuLowering::quantize(const RowsAt& in, const Binding& out, std::int64_t count, std::int64_t cols) {
  constexpr uint kLanes = 64;
  KeyedDispatch d = dispatch("quantize", "quantize", {kLanes, in.at % 4 == 0});
  d.bind(in.binding);
  d.bind(out);
  d.set_push(params::QuantizeParams{.tokens = word(count),
                                    .cols = word(cols),
                                    .in_at = in.at,
                                    .in_stride = in.stride,
                                    .out_at = 0,
                                    .out_stride = word(params::quantized_row_words(cols))});
  const double values = static_cast<double>(count) * static_cast<double>(cols);
  push(d, ceil_div(count * cols / 4, kLanes), values * 4, values * 5);
}

}  // namespace pumice::vulkan
