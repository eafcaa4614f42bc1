// Mixtures of experts. The pairs of a row and one of its experts are sorted by expert, so that one product computes all rows of an expert
// and reads the expert's weights once. Then the results of each row are added up in the order of the row's choices, so that the bits of a
// row do not depend on the other rows.
#include <algorithm>
#include <cstring>

#include "cpu/steps/part_product.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

std::int64_t pairs_of(const Run& run) { return run.batch.rows * std::int64_t{run.pairs.chosen}; }

float* pair_row(const Run& run, std::int32_t place, std::int64_t pair) {
  const PairPlace& rows = run.plan.pairs[static_cast<std::size_t>(place)];
  return reinterpret_cast<float*>(run.area(rows.area)) + pair * rows.stride;
}
std::int64_t pair_stride(const Run& run, std::int32_t place) { return run.plan.pairs[static_cast<std::size_t>(place)].stride; }

Cut cut_pairs(const Run& run, std::int64_t width) { return cut_rows({0, pairs_of(run)}, width); }

// Divides the product of all pieces (ExpertPairs::Piece) into tasks. A task multiplies one piece by some weight groups. Pieces may have
// different numbers of rows, but all tasks of a step have the same number of groups.
Cut cut_pieces(const Run& run, const ProductPart& part, std::int64_t group_bytes) {
  const std::int64_t groups = groups_of(part), cols = part.cols;
  const auto pieces = static_cast<std::int64_t>(run.pairs.pieces.size());
  Cut cut{.rows = {0, pieces}};
  const std::int64_t share = run.space.threads * 8, rows = pairs_of(run) / std::max<std::int64_t>(1, pieces);
  if (run.batch.rows <= kNarrowRows) {
    cut.shared_out = true;
    cut.groups = narrow_groups(run, groups * pieces, group_bytes, waits_for_chains(run, part));
  } else {
    const std::int64_t least = ceil_div(kTaskMacs, kGroupRows * cols * std::max<std::int64_t>(1, rows));
    cut.groups =
        round_up(std::clamp(ceil_div(groups * pieces, share), std::min(least, groups), std::max(least, kBlockGroups)), kTileGroups);
  }
  cut.groups = std::min(cut.groups, groups);
  limit_tasks(cut, groups, pieces);
  cut.tasks_of_rows = ceil_div(groups, cut.groups);
  cut.tasks = cut.tasks_of_rows * pieces;
  return cut;
}

// The work of one task: outputs [first, end) for the pairs `rows` of one piece.
struct PieceTask {
  PieceTask(const Run& run, const Cut& cut, std::int64_t index, std::int64_t outputs)
      : piece(run.pairs.pieces[static_cast<std::size_t>(index / cut.tasks_of_rows)]),
        rows{piece.first, piece.count},
        first(index % cut.tasks_of_rows * cut.groups * kGroupRows),
        end(std::min(first + cut.groups * kGroupRows, outputs)) {}

  const ExpertPairs::Piece& piece;
  const Range rows;
  const std::int64_t first, end;
};

// Returns the index of an expert, which Route wrote as a float. Returns 0 for a value that Route never writes, so that no memory outside of
// the weights is read.
std::int64_t expert_index(float index, std::int32_t experts) {
  return index >= 0 && index < static_cast<float>(experts) ? static_cast<std::int64_t>(index) : 0;
}

Operand operand(const Run& run, std::int32_t floats, const Range& rows) {
  return {floats < 0 ? nullptr : pair_row(run, floats, rows.first), floats < 0 ? 0 : pair_stride(run, floats), rows};
}

}  // namespace

// ---------------------------------------------------------------- routing and sorting
Cut cut(const Run& run, const RouteStep& s) {
  return cut_rows(run.rows_of(Rows::tokens), std::int64_t{s.op.logits.width} * (s.op.chosen + 4));
}
void task(const Run& run, const RouteStep& s, const Cut& cut, std::int64_t index, int) {
  const Route& op = s.op;
  const RouteCall call{op.logits.width, op.chosen, op.groups, op.kept, op.score, run.weights.vector(op.bias), run.weights.vector(op.scales),
                       op.normalised,   op.floor,  op.scale};
  const Range rows = cut.task_rows(index);
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r)
    run.kernels.rows.route(call, run.row(op.logits, r), run.row(op.out, r));
}

Cut cut(const Run& run, const SortStep&) { return {.tasks = run.batch.rows > 0 ? 1 : 0, .rows = {0, run.batch.rows}}; }
void task(const Run& run, const SortStep& s, const Cut&, std::int64_t, int) {
  ExpertPairs& pairs = run.pairs;
  pairs.chosen = s.route.width / 2;
  const auto chosen = static_cast<std::size_t>(pairs.chosen);
  std::fill(pairs.ends.begin(), pairs.ends.end(), 0);
  const auto expert_of = [&](std::int64_t row, std::size_t choice) {
    return static_cast<std::size_t>(expert_index(run.row(s.route, row)[choice], s.experts));
  };
  for (std::int64_t row = 0; row < run.batch.rows; ++row)
    for (std::size_t choice = 0; choice < chosen; ++choice) ++pairs.ends[expert_of(row, choice) + 1];
  for (std::int32_t e = 0; e < s.experts; ++e) pairs.ends[static_cast<std::size_t>(e) + 1] += pairs.ends[static_cast<std::size_t>(e)];
  pairs.pieces.clear();
  for (std::int32_t e = 0; e < s.experts; ++e) {
    const std::int32_t first = pairs.ends[static_cast<std::size_t>(e)], count = pairs.ends[static_cast<std::size_t>(e) + 1] - first;
    const auto most = static_cast<std::int32_t>(block_rows(std::max(1, count)));
    for (std::int32_t at = 0; at < count; at += most) pairs.pieces.push_back({e, first + at, std::min(most, count - at)});
  }
  // In this loop, ends[e] is the index of the next pair of expert e. After the loop, ends[e] is the end of the expert's pairs.
  for (std::int64_t row = 0; row < run.batch.rows; ++row) {
    for (std::size_t choice = 0; choice < chosen; ++choice) {
      const std::int32_t place = pairs.ends[expert_of(row, choice)]++;
      pairs.rows[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(row);
      pairs.choices[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(choice);
      pairs.places[static_cast<std::size_t>(row) * chosen + choice] = place;
    }
  }
}

// ---------------------------------------------------------------- products
Cut cut(const Run& run, const ReadExpertsStep& s) {
  const PackedMatrix& up = run.weights.matrix(s.up);
  if (!up.cached) return {};
  std::vector<std::int32_t> experts;
  for (const ExpertPairs::Piece& piece : run.pairs.pieces) experts.push_back(piece.expert);
  return {.tasks = run.experts.begin(up.cached_layer, experts)};
}
void task(const Run& run, const ReadExpertsStep&, const Cut&, std::int64_t index, int thread) { run.experts.read(index, thread); }

Cut cut(const Run& run, const GatherStep& s) { return cut_pairs(run, s.op.in.width); }
void task(const Run& run, const GatherStep& s, const Cut& cut, std::int64_t index, int) {
  const Range pairs = cut.task_rows(index);
  const std::int64_t width = s.op.in.width;
  float weighed[kTileFloats];
  for (std::int64_t p = pairs.first; p < pairs.first + pairs.count; ++p) {
    const std::int32_t row = run.pairs.rows[static_cast<std::size_t>(p)], choice = run.pairs.choices[static_cast<std::size_t>(p)];
    const float* x = run.row(s.op.in, row);
    const float weight = s.op.weighs_input ? run.row(s.op.route, row)[run.pairs.chosen + choice] : 1.0f;
    if (s.floats >= 0) {
      run.kernels.rows.scale_add(x, weight, nullptr, nullptr, width, pair_row(run, s.floats, p));
    } else if (!s.op.weighs_input) {
      CodeRows(run, s.quantized).quantize(x, run.stride(s.op.in), p, 1);
    } else {
      run.kernels.rows.scale_add(x, weight, nullptr, nullptr, width, weighed);
      CodeRows(run, s.quantized).quantize(weighed, width, p, 1);
    }
  }
}

Cut cut(const Run& run, const ExpertsUpStep& s) {
  run.experts.all_read();
  const std::int64_t gate = s.gate.weight == MatrixId::none ? 0 : group_bytes(run, s.gate);
  return cut_pieces(run, s.up, group_bytes(run, s.up) + gate);
}
void task(const Run& run, const ExpertsUpStep& s, const Cut& cut, std::int64_t index, int thread) {
  const PieceTask t(run, cut, index, s.up.rows);
  const Operand in = operand(run, s.gathered, t.rows);
  float* out = pair_row(run, s.hidden, t.rows.first);
  const std::int64_t stride = pair_stride(run, s.hidden);
  const PartProduct up(run, s.up, in, t.piece.expert);
  if (s.gate.weight != MatrixId::none) {
    const PartProduct gate(run, s.gate, in, t.piece.expert);
    const Gating how{.activation = s.op.activation, .limit = s.op.limit, .shift = s.op.shift};
    const GatedProduct product{gate, up, s.gate, s.up, t.rows.count, t.piece.expert, how};
    return product.outputs(run, t.first, t.end, out, stride, reinterpret_cast<float*>(run.scratch_of(thread)));
  }
  up.outputs(t.first, t.end - t.first, out + t.first, stride);
  const Epilogue end{.bias = bias_of(run, s.up, t.first, t.piece.expert), .activation = s.op.activation};
  run.kernels.rows.epilogue(out + t.first, stride, t.rows.count, t.end - t.first, end);
}

Cut cut(const Run& run, const PairCodesStep& s) { return cut_pairs(run, pair_stride(run, s.hidden)); }
void task(const Run& run, const PairCodesStep& s, const Cut& cut, std::int64_t index, int) {
  const Range pairs = cut.task_rows(index);
  CodeRows(run, s.quantized).quantize(pair_row(run, s.hidden, pairs.first), pair_stride(run, s.hidden), pairs.first, pairs.count);
}

Cut cut(const Run& run, const ExpertsDownStep& s) { return cut_pieces(run, s.down, group_bytes(run, s.down)); }
void task(const Run& run, const ExpertsDownStep& s, const Cut& cut, std::int64_t index, int) {
  const PieceTask t(run, cut, index, s.down.rows);
  PartProduct(run, s.down, operand(run, s.hidden, t.rows), t.piece.expert)
      .outputs(t.first, t.end - t.first, pair_row(run, s.results, t.rows.first) + t.first, pair_stride(run, s.results));
}

Cut cut(const Run& run, const FoldStep& s) {
  run.experts.end();
  return cut_rows(run.rows_of(Rows::tokens), std::int64_t{s.op.out.width} * run.pairs.chosen);
}
void task(const Run& run, const FoldStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index);
  const std::int32_t chosen = run.pairs.chosen;
  const float* bias = run.weights.vector(s.op.down_bias);
  const float *results[kMaxChosen], *biases[kMaxChosen];
  for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
    const float* route = run.row(s.op.route, r);
    for (std::int32_t j = 0; j < chosen; ++j) {
      results[j] = pair_row(run, s.results, run.pairs.places[static_cast<std::size_t>(r * chosen + j)]);
      if (bias) biases[j] = bias + expert_index(route[j], s.experts) * s.op.out.width;
    }
    run.kernels.rows.fold_choices(results, bias ? biases : nullptr, s.op.weighs_input ? nullptr : route + chosen, chosen, s.op.scale,
                                  s.op.residual ? run.row(s.op.residual, r) : nullptr, s.op.out.width, run.row(s.op.out, r));
  }
}

}  // namespace pumice::cpu
