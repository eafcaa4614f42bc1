// Lowers products with weights, and the rounding of activations to 8 bits that some of these products need.
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"
#include "vulkan/tiles.h"

namespace pumice::vulkan {
namespace {

PipelineKey linear_pipeline(const PhysicalDevice& device, Form form, std::int64_t rows, Format format, Format format2, bool gated,
                            bool vectors, LinearTile& tile) {
  const bool few = rows <= kFewRows;
  std::string shader = form == Form::cooperative ? "gemm_coopmat" : few ? "matvec" : "gemm";
  if (form == Form::int8) shader += "_i8";
  tile = form == Form::cooperative ? cooperative_tile(device.cooperative, device.limits, rows, gated)
         : few                     ? tile_for(kMatvecTiles, rows)
                                   : tile_for(kGemmTiles, rows);
  PipelineKey key{std::move(shader),
                  {tile.lanes, static_cast<uint>(format), static_cast<uint>(format2), gated, vectors, tile.tokens, tile.outputs}};
  if (form == Form::cooperative) {
    const CooperativeShape& shape = device.cooperative;
    key.constants.insert(key.constants.end(), {shape.m, shape.n, shape.k, shape.subgroup});
    key.subgroup = shape.subgroup;
  }
  return key;
}

}  // namespace

void GpuLowering::operator()(const Linear& op) {
  const params::LinearParams end{.activation = static_cast<uint>(op.activation),
                                 .scale = op.scale,
                                 .softcap = op.softcap,
                                 .alpha_p = op.alpha_p,
                                 .alpha_n = op.alpha_n};
  std::int64_t col = op.out.col;
  bool quantized = false;
  for (const LinearPart& part : op.parts) {
    const GpuMatrix& m = run_.weights[part.weight];
    const Form form = form_of(op.in, takes_int8(m.format, m.rounding), op.precise);
    if (form == Form::int8 && !quantized) quantize(op.in), quantized = true;
    for (const Block block : blocks(rows_of(op.in), {op.in, op.out, op.residual}, form == Form::int8)) {
      for (const RowRange& piece : m.pieces) {
        Product p{.in = op.in,
                  .out = {op.out.slot, static_cast<std::int32_t>(col + piece.first), static_cast<std::int32_t>(piece.rows)},
                  .residual = op.residual,
                  .bias = part.bias,
                  .bias_at = piece.first,
                  .form = form,
                  .end = end};
        if (op.residual) p.residual.col += static_cast<std::int32_t>(col - op.out.col + piece.first);
        product(p, block, {&m, &piece, 0, piece.rows}, {});
      }
    }
    col += m.rows;
  }
}

// A dispatch computes those outputs whose rows lie in one piece of the matrix `gate` and also in one piece of the matrix `up`.
void GpuLowering::operator()(const GatedLinear& op) {
  const GpuMatrix &gate = run_.weights[op.gate], &up = run_.weights[op.up];
  const Form form = form_of(op.in, takes_int8(gate.format, gate.rounding) && takes_int8(up.format, up.rounding), false);
  if (form == Form::int8) quantize(op.in);
  for (const Block block : blocks(rows_of(op.in), {op.in, op.out}, form == Form::int8)) {
    for (const RowRange& g : gate.pieces) {
      for (const RowRange& u : up.pieces) {
        const std::int64_t first = std::max(g.first, u.first), end = std::min(g.first + g.rows, u.first + u.rows);
        if (first >= end) continue;
        const Product p{.in = op.in,
                        .out = {op.out.slot, static_cast<std::int32_t>(op.out.col + first), static_cast<std::int32_t>(end - first)},
                        .bias = op.gate_bias,
                        .bias2 = op.up_bias,
                        .bias_at = first,
                        .form = form,
                        .end = {.activation = static_cast<uint>(op.activation), .scale = 1}};
        product(p, block, {&gate, &g, first - g.first, end - first}, {&up, &u, first - u.first, end - first});
      }
    }
  }
}

void GpuLowering::product(const Product& p, const Block& block, const Strip& w, const Strip& w2) {
  const bool gated = w2.matrix != nullptr, residual = static_cast<bool>(p.residual), int8 = p.form == Form::int8;
  const Format format = w.matrix->format, format2 = gated ? w2.matrix->format : format;
  LinearTile tile{};
  KeyedDispatch d = dispatch(gated ? "gated linear" : "linear",
                             linear_pipeline(run_.device, p.form, block.count, format, format2, gated, int8 || p.in.col % 4 == 0, tile));
  d.bind(bind(*w.piece));
  d.bind(int8 ? quantized_rows(p.in, block, false) : rows(p.in, block, false));
  d.bind(rows(p.out, block, true));
  const auto [bias_at, bias2_at] = bind_vectors(d, {p.bias, p.bias2});
  d.bind(rows(p.residual, block, false));
  d.bind(gated ? bind(*w2.piece) : Binding{});
  const std::int64_t cols = w.matrix->cols;
  params::LinearParams push_params = p.end;
  push_params.tokens = word(block.count);
  push_params.outputs = word(w.rows);
  push_params.cols = word(cols);
  push_params.weights_at = word(w.first * w.matrix->row_words);
  push_params.weights2_at = gated ? word(w2.first * w2.matrix->row_words) : 0;
  push_params.in_at = int8 ? 0 : word(p.in.col);
  push_params.in_stride = int8 ? word(params::quantized_row_words(cols)) : stride(p.in);
  push_params.out_at = word(p.out.col);
  push_params.out_stride = stride(p.out);
  push_params.bias_at = bias_at + word(p.bias_at);
  push_params.bias2_at = bias2_at + word(p.bias_at);
  push_params.residual_at = residual ? word(p.residual.col) : 0;
  push_params.residual_stride = residual ? stride(p.residual) : 0;
  push_params.has_bias = p.bias != VectorId::none;
  push_params.has_bias2 = p.bias2 != VectorId::none;
  push_params.has_residual = residual;
  d.set_push(push_params);
  const double rows = static_cast<double>(w.rows) * (gated ? 2 : 1), tokens = static_cast<double>(block.count);
  const std::int64_t outputs = gated ? tile.outputs / 2 : tile.outputs;
  const std::int64_t weight_words = w.rows * w.matrix->row_words + (gated ? w2.rows * w2.matrix->row_words : 0);
  push(d, ceil_div(block.count, tile.tokens) * ceil_div(w.rows, outputs), 2 * rows * tokens * static_cast<double>(cols),
       static_cast<double>(weight_words) * 4 + tokens * (static_cast<double>(cols) + rows) * 4);
}

Form GpuLowering::form_of(const View& in, bool int8, bool precise) const {
  if (precise) return Form::floats;
  if (run_.plan.variants.cooperative_matrix && run_.counts.of(rows_of(in)) > kFewRows) return Form::cooperative;
  return run_.plan.variants.integer_dot && int8 ? Form::int8 : Form::floats;
}

void GpuLowering::quantize(const View& in) {
  const std::int64_t cols = in.width;
  constexpr uint kLanes = 64;
  for (const Block block : blocks(rows_of(in), {in}, true)) {
    KeyedDispatch d = dispatch("quantize", "quantize", {kLanes, in.col % 4 == 0});
    d.bind(rows(in, block, false));
    d.bind(quantized_rows(in, block, true));
    d.set_push(params::QuantizeParams{.tokens = word(block.count),
                                      .cols = word(cols),
                                      .in_at = word(in.col),
                                      .in_stride = stride(in),
                                      .out_at = 0,
                                      .out_stride = word(params::quantized_row_words(cols))});
    const double values = static_cast<double>(block.count) * static_cast<double>(cols);
    push(d, ceil_div(block.count * cols / 4, kLanes), values * 4, values * 5);
  }
}

}  // namespace pumice::vulkan
