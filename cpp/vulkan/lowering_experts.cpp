// Lowers mixtures of experts: Route and Experts. A pair is a row of the batch and one of the experts that are chosen for it (see params.h).
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"

namespace pumice::vulkan {

LinearTile listed_tile(const PhysicalDevice& device, Form form, std::int64_t rows) {
  if (listed_few(rows)) return tile_for(kMatvecTiles, 2 * rows);  // twice the average number of pairs, because some experts have more
  return form == Form::cooperative ? cooperative_tile(device.cooperative, device.limits, rows, true, 4) : tile_for(kGemmTiles, rows);
}

void GpuLowering::operator()(const Route& op) {
  constexpr uint kLanes = 64;
  for (const Block block : blocks(Rows::tokens, {op.logits, op.out})) {
    KeyedDispatch d = dispatch("route", "route", {kLanes, number(op.score)});
    d.bind(rows(op.logits, block, false));
    const auto [bias_at, scales_at] = bind_vectors(d, {op.bias, op.scales});
    d.bind(rows(op.out, block, true));
    d.set_push(params::RouteParams{.experts = word(op.logits.width),
                                   .chosen = word(op.chosen),
                                   .expert_groups = word(op.groups),
                                   .kept = word(op.kept),
                                   .logits_at = word(op.logits.col),
                                   .logits_stride = stride(op.logits),
                                   .out_at = word(op.out.col),
                                   .out_stride = stride(op.out),
                                   .bias_at = bias_at,
                                   .scales_at = scales_at,
                                   .has_bias = op.bias != VectorId::none,
                                   .has_scales = op.scales != VectorId::none,
                                   .normalised = op.normalised,
                                   .floor = op.floor,
                                   .scale = op.scale});
    const double values = static_cast<double>(block.count) * op.logits.width;
    push(d, block.count, values * (op.chosen + 3) * 20, values * 4);
  }
}

void GpuLowering::operator()(const ExpertsStep& step) {
  for (std::int64_t first = 0; first < run_.counts.tokens; first += step.block_rows)
    experts(step, {first, std::min(step.block_rows, run_.counts.tokens - first)});
}

void GpuLowering::experts(const ExpertsStep& step, const Block& block) {
  const Experts& op = step.op;
  const std::int64_t pairs = block.count * step.chosen;
  const bool few = block.count <= kFewRows;
  const ExpertArea area = expert_area(step, block.count);
  const auto pair_rows = [&](std::uint64_t at, std::int32_t width, bool written) {
    const auto words = static_cast<std::uint64_t>(slot_stride(width));
    return RowsAt{scratch(run_.areas.experts + at, static_cast<std::uint64_t>(pairs) * words * 4, written), 0,
                  word(static_cast<std::int64_t>(words))};
  };
  const std::int64_t tile_rows = ceil_div(pairs, step.experts);
  const auto form = [&](bool int8) { return form_of(few || listed_few(tile_rows) ? 1 : block.count, int8, false); };
  // Returns the rows that a product of this form reads. These are the rows `in`, or a copy of them that is rounded to 8 bits.
  const auto activations = [&](const RowsAt& in, Form form, std::int64_t count, std::int64_t cols) {
    if (form != Form::int8) return in;
    const std::int64_t words = params::quantized_row_words(cols);
    const auto codes = [&](bool written) { return scratch(run_.areas.quantized, static_cast<std::uint64_t>(count * words) * 4, written); };
    quantize(in, codes(true), count, cols);
    return RowsAt{codes(false), 0, word(words)};
  };

  const Form up_form = form(step.int8_up), down_form = form(step.int8_down);
  const RowsAt route =
      few ? rows_at(op.route, block, false) : sorted(step, block, area, listed_tile(run_.device, up_form, tile_rows).tokens);
  const auto multiply = [&](Product p, const Strip& w, const Strip& w2) {
    p.route = route;
    p.rows = few ? params::kRowsOfPairs : params::kRowsListed;
    p.tokens = pairs;
    p.tile_rows = tile_rows;
    p.end.scale = 1;
    p.end.chosen = word(step.chosen);
    p.out.at += word(w.first);
    product(p, w, w2);
  };

  const GpuMatrix& up = run_.weights[op.up];
  const RowsAt in = activations(rows_at(op.in, block, false), up_form, block.count, op.in.width);
  const params::LinearParams up_end{.activation = static_cast<uint>(op.activation),
                                    .has = op.weighs_input ? params::kHasWeight : 0,
                                    .limit = op.limit,
                                    .shift = op.shift};
  const RowsAt hidden = pair_rows(area.hidden_at, step.width, true);
  if (op.gate == MatrixId::none) {
    for (const Strip& w : strips(up))
      multiply({.what = "experts, up", .in = in, .out = hidden, .bias = op.up_bias, .form = up_form, .end = up_end}, w, {});
  } else {
    for (const auto& [w, w2] : strips(run_.weights[op.gate], up)) {
      multiply({.what = "experts, gate and up",
                .in = in,
                .out = hidden,
                .bias = op.gate_bias,
                .bias2 = op.up_bias,
                .form = up_form,
                .end = up_end},
               w, w2);
    }
  }
  const RowsAt down_in = activations(pair_rows(area.hidden_at, step.width, false), down_form, pairs, step.width);
  const RowsAt results = pair_rows(area.results_at, op.out.width, true);
  for (const Strip& w : strips(run_.weights[op.down])) {
    multiply({.what = "experts, down",
              .in = down_in,
              .out = results,
              .bias = op.down_bias,
              .form = down_form,
              .end = {.has = params::kInByPair}},
             w, {});
  }
  fold(step, block, pair_rows(area.results_at, op.out.width, false));
}

// Sorts the pairs of the block by expert on the device. Returns the sorted list, which is cut into tiles of at most `tile_rows` pairs.
GpuLowering::RowsAt GpuLowering::sorted(const ExpertsStep& step, const Block& block, const ExpertArea& area, std::int64_t tile_rows) {
  constexpr uint kLanes = 64;
  const std::int64_t pairs = block.count * step.chosen, tiles = params::list_tiles(pairs, step.experts, tile_rows);
  const auto list = [&](bool written) {
    return scratch(run_.areas.experts + area.list_at, static_cast<std::uint64_t>(params::list_words(pairs, tiles)) * 4, written);
  };
  KeyedDispatch d = dispatch("sort pairs", "sort", {kLanes});
  d.bind(rows(step.op.route, block, false));
  d.bind(list(true));
  d.set_push(params::SortParams{.experts = word(step.experts),
                                .pairs = word(pairs),
                                .chosen = word(step.chosen),
                                .tiles = word(tiles),
                                .tile_rows = word(tile_rows),
                                .route_at = word(step.op.route.col),
                                .route_stride = stride(step.op.route)});
  const double looks = static_cast<double>(pairs) * step.experts;
  push(d, step.experts, looks * 10, looks * 4);
  return {list(false), 0, 0};
}

void GpuLowering::fold(const ExpertsStep& step, const Block& block, const RowsAt& results) {
  constexpr uint kLanes = 64;
  const Experts& op = step.op;
  const std::int64_t per_row = ceil_div(op.out.width, std::int64_t{kLanes} * params::kFoldPerLane);
  KeyedDispatch d = dispatch("experts, sums", "fold", {kLanes});
  d.bind(results.binding);
  d.bind(rows(op.route, block, false));
  d.bind(rows(op.residual, block, false));
  d.bind(rows(op.out, block, true));
  d.set_push(params::FoldParams{.blocks = word(per_row),
                                .width = word(op.out.width),
                                .chosen = word(step.chosen),
                                .weighed = !op.weighs_input,
                                .has_residual = static_cast<bool>(op.residual),
                                .in_at = results.at,
                                .in_stride = results.stride,
                                .route_at = word(op.route.col),
                                .route_stride = stride(op.route),
                                .residual_at = word(op.residual.col),
                                .residual_stride = op.residual ? stride(op.residual) : 0,
                                .out_at = word(op.out.col),
                                .out_stride = stride(op.out),
                                .scale = op.scale});
  const double values = static_cast<double>(block.count) * op.out.width;
  push(d, block.count * per_row, values * 2 * step.chosen, values * 4 * (step.chosen + 2));
}

}  // namespace pumice::vulkan
