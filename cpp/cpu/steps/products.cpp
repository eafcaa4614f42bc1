// Products of activations with weights. A task multiplies a block of token rows by a block of weight groups from one part (ProductPart).
// Consecutive tasks have the same block of rows and different blocks of groups. So threads that work at the same time read the same rows,
// and share them in the cache. (The rows take more bytes than the weights of a task.) If there are few rows, the time to read weights
// limits the speed, so each thread runs consecutive tasks.
#include <climits>
#include <cstring>

#include "cpu/steps/part_product.h"
#include "cpu/steps/steps.h"

namespace pumice::cpu {
namespace {

// Returns the maximum number of rows in a block of rows, for a product with this part.
std::int64_t most_rows(const Run& run, const ProductPart& part) {
  if (part.quantized < 0 || run.plan.quantized[static_cast<std::size_t>(part.quantized)].codes != Codes::bytes) return kBlockRows;
  return run.kernels.matrix.bytes.of_words ? kWidenedRows : kBlockRows;
}

// The sizes of one product, or of all products of a step together.
struct ProductSizes {
  std::int64_t groups = 0, group_bytes = 0, cols = 1;
  std::int64_t most_groups = INT_MAX;   // largest number of groups in a task, unless there would be too many tasks
  std::int64_t most_rows = kBlockRows;  // largest number of rows in a block of rows
  bool chains = false;                  // true if waits_for_chains() is true for a part
};

// Chooses the numbers of weight groups and rows per task. The caller must then set the number of tasks with count_tasks().
Cut cut_product(const Run& run, Rows kind, const ProductSizes& sizes) {
  const auto [groups, group_bytes, cols, most_groups, most_rows, chains] = sizes;
  Cut cut{.rows = run.rows_of(kind)};
  const std::int64_t share = run.space.threads * 8;
  std::int64_t blocks = 1;
  if (cut.rows.count <= kNarrowRows) {
    cut.shared_out = true;
    cut.per_task = std::max<std::int64_t>(1, cut.rows.count);
    cut.groups = narrow_groups(run, groups, group_bytes, chains);
  } else {
    cut.per_task = block_rows(cut.rows.count, most_rows);
    blocks = ceil_div(cut.rows.count, cut.per_task);
    const std::int64_t least = std::min(kBlockGroups, ceil_div(kTaskMacs, kGroupRows * cols * cut.per_task));
    cut.groups = round_up(std::clamp(ceil_div(groups * blocks, share), least, kBlockGroups), kTileGroups);
  }
  cut.groups = std::min(cut.groups, most_groups);
  limit_tasks(cut, groups, blocks);
  return cut;
}
void count_tasks(Cut& cut, std::int64_t tasks_of_rows) {
  cut.tasks_of_rows = tasks_of_rows;
  cut.tasks = tasks_of_rows * ceil_div(cut.rows.count, cut.per_task);
}

Epilogue epilogue_of(const Run& run, const LinearStep& s, const ProductPart& part, std::int64_t first, const float* residual) {
  return {.bias = bias_of(run, part, first),
          .activation = s.op.activation,
          .residual = residual,
          .residual_stride = residual ? run.stride(s.op.residual) : 0,
          .scale = s.op.scale,
          .softcap = s.op.softcap,
          .alpha_p = s.op.alpha_p,
          .alpha_n = s.op.alpha_n};
}

// Computes x = x + W h in place. The product is first written to a separate tile, because the output still contains x.
void finish_in_place(const Run& run, const LinearStep& s, const ProductPart& part, const PartProduct& product, std::int64_t first,
                     std::int64_t count, const Range& rows, float* out) {
  alignas(kLine) float tile[kTileFloats];
  const std::int64_t width = std::min<std::int64_t>(count, kTileFloats / rows.count / kGroupRows * kGroupRows);
  for (std::int64_t c = 0; c < count; c += width) {
    const std::int64_t cols = std::min(width, count - c);
    product.outputs(first + c, cols, tile, width);
    run.kernels.rows.epilogue(tile, width, rows.count, cols, epilogue_of(run, s, part, first + c, out + c));
    for (std::int64_t r = 0; r < rows.count; ++r) {
      std::memcpy(out + r * run.stride(s.op.out) + c, tile + r * width, static_cast<std::size_t>(cols) * sizeof(float));
    }
  }
}

}  // namespace

Cut cut(const Run& run, const LinearStep& s) {
  ProductSizes sizes;
  for (const ProductPart& part : s.parts) {
    sizes.groups += groups_of(part);
    sizes.group_bytes = std::max(sizes.group_bytes, group_bytes(run, part));
    sizes.cols = part.cols;
    sizes.most_rows = std::max(sizes.most_rows, most_rows(run, part));
    sizes.chains |= waits_for_chains(run, part);
  }
  Cut cut = cut_product(run, run.slot(s.op.in).rows, sizes);
  std::int64_t tasks = 0;
  for (const ProductPart& part : s.parts) tasks += ceil_div(groups_of(part), cut.groups);
  count_tasks(cut, tasks);
  return cut;
}
void task(const Run& run, const LinearStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index / cut.tasks_of_rows);
  std::int64_t block = index % cut.tasks_of_rows;
  const ProductPart* part = s.parts.data();
  for (std::int64_t own; block >= (own = ceil_div(groups_of(*part), cut.groups)); ++part) block -= own;
  const std::int64_t first = block * cut.groups * kGroupRows;
  const std::int64_t count = std::min(cut.groups * kGroupRows, part->rows - first);
  const PartProduct product(run, *part, s.op.in, rows);
  float* out = run.row(s.op.out, rows.first) + part->col + first;
  if (s.op.residual && s.op.residual == s.op.out) return finish_in_place(run, s, *part, product, first, count, rows, out);
  product.outputs(first, count, out, run.stride(s.op.out));
  const float* residual = s.op.residual ? run.row(s.op.residual, rows.first) + part->col + first : nullptr;
  run.kernels.rows.epilogue(out, run.stride(s.op.out), rows.count, count, epilogue_of(run, s, *part, first, residual));
}

Cut cut(const Run& run, const GatedStep& s) {
  const Rows kind = run.slot(s.in).rows;
  ProductSizes sizes{groups_of(s.gate), group_bytes(run, s.gate) + group_bytes(run, s.up), s.gate.cols};
  sizes.most_rows = most_rows(run, s.gate);
  sizes.chains = waits_for_chains(run, s.gate);
  sizes.most_groups = kTileFloats / (kGroupRows * std::clamp<std::int64_t>(run.rows_of(kind).count, 1, sizes.most_rows));
  Cut cut = cut_product(run, kind, sizes);
  count_tasks(cut, ceil_div(groups_of(s.gate), cut.groups));
  return cut;
}
void task(const Run& run, const GatedStep& s, const Cut& cut, std::int64_t index, int thread) {
  const Range rows = cut.task_rows(index / cut.tasks_of_rows);
  const std::int64_t first = index % cut.tasks_of_rows * cut.groups * kGroupRows;
  const std::int64_t end = std::min(first + cut.groups * kGroupRows, s.gate.rows);
  const PartProduct gate(run, s.gate, s.in, rows), up(run, s.up, s.in, rows);
  const GatedProduct product{gate, up, s.gate, s.up, rows.count, 0, {.activation = s.activation}};
  product.outputs(run, first, end, run.row(s.out, rows.first), run.stride(s.out), reinterpret_cast<float*>(run.scratch_of(thread)));
}

// A task computes some weight groups of one head.
Cut cut(const Run& run, const HeadLinearStep& s) {
  const std::int64_t heads = run.weights.matrix(s.op.weight).experts, groups = groups_of(s.part);
  Cut cut = cut_product(run, run.slot(s.op.in).rows,
                        {groups * heads, group_bytes(run, s.part), s.part.cols, groups, kBlockRows, waits_for_chains(run, s.part)});
  count_tasks(cut, heads * ceil_div(groups, cut.groups));
  return cut;
}
void task(const Run& run, const HeadLinearStep& s, const Cut& cut, std::int64_t index, int) {
  const Range rows = cut.task_rows(index / cut.tasks_of_rows);
  const std::int64_t blocks = ceil_div(groups_of(s.part), cut.groups), head = index % cut.tasks_of_rows / blocks;
  const std::int64_t first = index % blocks * cut.groups * kGroupRows, col = head * s.op.in_step;
  const Operand in{run.row(s.op.in, rows.first) + col, run.stride(s.op.in), rows, col};
  PartProduct(run, s.part, in, head)
      .outputs(first, std::min(cut.groups * kGroupRows, s.part.rows - first), run.row(s.op.out, rows.first) + head * s.op.out_step + first,
               run.stride(s.op.out));
}

}  // namespace pumice::cpu
