#include "cpu/lowering.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "core/checked.h"
#include "cpu/areas.h"
#include "cpu/kernels.h"
#include "cpu/packed_weights.h"
#include "cpu/scratch.h"
#include "cpu/sketch.h"

namespace pumice::cpu {
namespace {

class CpuLowering {
 public:
  CpuLowering(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded)
      : program_(program), weights_(weights), compute_(compute), folded_(folded) {
    for (const MatrixShape& matrix : weights.matrices) says_what_rounds_ |= matrix.rounding != Rounding::none;
  }

  CpuPlan lower() {
    plan_.facts = check_program(program_, weights_);
    begin();
    for (op_ = 0; op_ < program_.ops.size(); ++op_) {
      std::visit(*this, program_.ops[op_]);
      if (static_cast<std::int64_t>(op_) + 1 == plan_.facts.last_beyond_row) tail_step_ = plan_.steps.size();
    }
    end();
    return std::move(plan_);
  }

  void operator()(const Embed& op) {
    for (const MatrixId id : {op.tokens, op.positions, op.types}) {
      if (id == MatrixId::none) continue;
      const MatrixShape& table = weights_.matrices[static_cast<std::size_t>(id)];
      require(packing_of(table) == Packing::format || packing_of(table) == Packing::row_major, "program '", program_.name,
              "': embeds rows of '", table.name, "', which may be rounded");
    }
    plan_.widest_embedding = std::max<std::int64_t>(plan_.widest_embedding, op.out.width);
    plan_.steps.push_back(EmbedStep{op});
    written(op.out);
  }

  void operator()(const Norm& op) {
    written(op.out);
    made_by_norm_.push_back({op.out, plan_.steps.size(), op_});
    plan_.steps.push_back(NormStep{op});
  }

  void operator()(const Linear& op) {
    LinearStep step{op, {}};
    std::int64_t col = 0;
    for (const LinearPart& part : op.parts) {
      step.parts.push_back(this->part(part.weight, part.bias, op.in, col, op.precise));
      col += step.parts.back().rows;
    }
    if (sketched_by(program_, op_, weights_) == MatrixId::none) {
      plan_.steps.push_back(std::move(step));
    } else {
      sketch(std::move(step));
    }
    written(op.out);
  }

  void operator()(const GatedLinear& op) {
    GatedStep step{op.in, op.out, op.activation, part(op.gate, op.gate_bias, op.in, 0, false), part(op.up, op.up_bias, op.in, 0, false)};
    plan_.gated = true;
    plan_.steps.push_back(step);
    written(op.out);
  }

  void operator()(const HeadLinear& op) {
    const ProductPart part = this->part(op.weight, VectorId::none, op.in, 0, false);
    if (part.quantized >= 0) {
      const Codes codes = plan_.quantized[static_cast<std::size_t>(part.quantized)].codes;
      require(codes == Codes::int8 || (codes == Codes::fixed && op.in_step % kFixedBlock == 0), "program '", program_.name,
              "': heads that are ", op.in_step, " columns apart in codes of 16 bits");
    }
    plan_.steps.push_back(HeadLinearStep{op, part});
    written(op.out);
  }

  void operator()(const Route& op) {
    plan_.steps.push_back(RouteStep{op});
    written(op.out);
  }

  void operator()(const Experts& op) {
    const MatrixShape& shape = weights_.matrices[static_cast<std::size_t>(op.up)];
    const std::int32_t chosen = op.route.width / 2;
    plan_.most_chosen = std::max(plan_.most_chosen, chosen);
    plan_.most_experts = std::max(plan_.most_experts, shape.experts);
    plan_.gated = true;
    require(!op.weighs_input || op.in.width <= kTileFloats, "program '", program_.name, "': experts whose input is weighed have at most ",
            kTileFloats, " columns, not ", op.in.width);
    plan_.steps.push_back(SortStep{op.route, shape.experts});
    plan_.steps.push_back(ReadExpertsStep{op.up});
    ExpertsUpStep step{op, {}, float_part(op.up, op.up_bias, 0, false), -1, -1};
    std::vector<ProductPart*> parts = {&step.up};
    if (op.gate == MatrixId::none) {
      step.gate.weight = MatrixId::none;
    } else {
      step.gate = float_part(op.gate, op.gate_bias, 0, false);
      parts.push_back(&step.gate);
    }
    step.gathered = gather(op, parts, chosen);
    step.hidden = pair_floats(shape.rows_each(), chosen);
    plan_.steps.push_back(step);
    ProductPart down = float_part(op.down, op.down_bias, 0, false);
    if (const auto codes = codes_of(weights_.matrices[static_cast<std::size_t>(op.down)], false)) {
      down.quantized = pair_codes(shape.rows_each(), *codes, chosen);
      plan_.steps.push_back(PairCodesStep{step.hidden, down.quantized});
    }
    const std::int32_t results = pair_floats(op.out.width, chosen);
    plan_.steps.push_back(ExpertsDownStep{down, step.hidden, results});
    plan_.steps.push_back(FoldStep{op, shape.experts, results});
    written(op.out);
  }

  void operator()(const Multiply& op) {
    plan_.steps.push_back(MultiplyStep{op});
    written(op.out);
  }

  void operator()(const Rope& op) {
    if (op.table.inv_freq.empty() && op.temperature_length == 0) return;  // no step, because x does not change
    open_rope_store().ropes.push_back({op.x, op.head_dim, turns(op.table), op.temperature, op.temperature_length, op.temperature_offset});
    written(op.x);
  }

  void operator()(const Store& op) {
    RopeStoreStep& step = open_rope_store();
    step.store = op;
    step.shape = program_.caches[static_cast<std::size_t>(op.cache)];
  }

  void operator()(const Attend& op) {
    const bool cached = op.cache != CacheId::none;
    const std::int32_t group = op.q.width / (op.kv_heads * op.key_dim);
    const AttendShape wanted{group, op.kv_heads, op.key_dim, op.value_dim, op.window, op.chunk, op.causal, cached};
    const auto known = std::find(plan_.attends.begin(), plan_.attends.end(), wanted);
    const auto shape = static_cast<std::int32_t>(known - plan_.attends.begin());
    if (known == plan_.attends.end()) plan_.attends.push_back(wanted);
    if (!cached) plan_.steps.push_back(KeepStep{op, shape});
    plan_.steps.push_back(AttendStep{op, shape});
    plan_.steps.push_back(MergeStep{op, shape});
    written(op.out);
  }

  void operator()(const Conv& op) {
    plan_.steps.push_back(ConvStep{op});
    written(op.out);
  }

  void operator()(const Scan& op) {
    plan_.widest_key = std::max(plan_.widest_key, op.key_dim);
    plan_.steps.push_back(ScanStep{op});
    written(op.out);
  }

  void operator()(const Select& op) {
    plan_.steps.push_back(SelectStep{op.in, op.out});
    written(op.out);
  }

  void operator()(const Pool& op) {
    plan_.steps.push_back(PoolStep{op.in, op.out, op.kind});
    written(op.out);
  }

  void operator()(const LogProb& op) {
    plan_.steps.push_back(LogProbStep{op.logits, op.out});
    written(op.out);
  }

  void operator()(const Top& op) {
    plan_.steps.push_back(TopStep{op});
    written(op.out);
  }

 private:
  // ---------------------------------------------------------------- begin and end
  void begin() {
    for (const SlotShape& slot : program_.slots) plan_.slots.push_back({slot.rows, slot.width, activation_stride(slot.width), -1});
    if (program_.output >= 0) {  // the output is in the caller's memory, without gaps between rows
      SlotPlace& output = plan_.slots[static_cast<std::size_t>(program_.output)];
      output.stride = output.width;
    }
    if (program_.input >= 0) plan_.steps.push_back(InputStep{program_.input});
  }

  void end() {
    // The steps that compute cosines and sines come first.
    std::vector<Step> tables;
    for (std::size_t t = 0; t < plan_.turns.size(); ++t) tables.push_back(TurnsStep{static_cast<std::int32_t>(t)});
    plan_.steps.insert(plan_.steps.begin(), tables.begin(), tables.end());
    tail_step_ += tables.size();
    if (tail_step_ == tables.size() && program_.input >= 0) ++tail_step_;  // InputStep runs once, before the tail
    in_blocks_ = plan_.facts.reduces_logits && plan_.facts.last_other_rows < plan_.facts.last_beyond_row;
    plan_.tail = in_blocks_ ? tail_step_ : plan_.steps.size();
    give_areas(plan_, lives_, program_.output, in_blocks_);
  }

  // Called when an operation writes to the view `v`. Forgets the codes that were made from views that overlap `v`, and the norms whose
  // output was in such a view.
  void written(const View& v) {
    std::erase_if(quantized_now_, [&](const Quantized& q) { return overlap(q.view, v); });
    std::erase_if(made_by_norm_, [&](const Made& m) { return overlap(m.view, v); });
  }

  // Returns the kind of codes to which the activations of a product are quantized; empty if the product multiplies floats.
  std::optional<Codes> codes_of(const MatrixShape& shape, bool precise) const {
    const Packing packing = packing_of(shape);
    const bool rounded = packing == Packing::fixed || packing == Packing::bytes;
    require(!rounded || compute_ == Compute::automatic, "program '", program_.name, "': compute float32 of '", shape.name,
            "', which was packed rounded");
    if (compute_ == Compute::float32) return std::nullopt;
    if (rounded) return packing == Packing::bytes ? Codes::bytes : Codes::fixed;
    if (takes_int8(shape.format, shape.rounding)) return precise ? Codes::two_int8 : Codes::int8;
    return info(shape.format).quantized ? std::optional(Codes::fixed) : std::nullopt;
  }

  // Returns a ProductPart that multiplies floats by a matrix (or, for Experts, by the matrix of one expert).
  ProductPart float_part(MatrixId weight, VectorId bias, std::int64_t col, bool precise) const {
    const MatrixShape& shape = weights_.matrices[static_cast<std::size_t>(weight)];
    ProductPart part{weight, bias, shape.rows_each(), shape.cols, static_cast<std::int32_t>(col), -1};
    part.bf16 = compute_ == Compute::automatic && !info(shape.format).quantized && !precise && !says_what_rounds_;
    return part;
  }

  ProductPart part(MatrixId weight, VectorId bias, const View& in, std::int64_t col, bool precise) {
    ProductPart part = float_part(weight, bias, col, precise);
    const auto codes = codes_of(weights_.matrices[static_cast<std::size_t>(weight)], precise);
    if (codes) part.quantized = quantized(in, *codes, *codes == Codes::bytes ? weight : MatrixId::none);
    return part;
  }

  // ---------------------------------------------------------------- quantized activations, each made once
  bool fold_alike(MatrixId a, MatrixId b) const {
    if (a == MatrixId::none || b == MatrixId::none) return a == b;
    return folded_.empty() || folded_[static_cast<std::size_t>(a)] == folded_[static_cast<std::size_t>(b)];
  }

  std::int32_t quantized(const View& in, Codes codes, MatrixId folded = MatrixId::none) {
    const auto now = static_cast<std::int64_t>(op_);
    for (const Quantized& known : quantized_now_) {
      const QuantizedPlace& place = plan_.quantized[static_cast<std::size_t>(known.id)];
      if (known.view == in && place.codes == codes && fold_alike(place.folded, folded)) {
        lives_.quantized[static_cast<std::size_t>(known.id)].at(now);
        return known.id;
      }
    }
    const auto id = static_cast<std::int32_t>(plan_.quantized.size());
    plan_.quantized.push_back({program_.slots[static_cast<std::size_t>(in.slot)].rows, in.width, -1, codes, folded});
    lives_.quantized.emplace_back();
    lives_.quantized.back().at(now);
    quantized_now_.push_back({in, id});
    for (const Made& made : made_by_norm_) {
      NormStep& norm = std::get<NormStep>(plan_.steps[made.step]);
      if (made.view == in) {  // the norm's loop quantizes each row while the row is in the L1 cache
        norm.quantized.push_back(id);
        lives_.quantized.back().at(static_cast<std::int64_t>(made.op));
        return id;
      }
    }
    plan_.steps.push_back(QuantizeStep{in, id});
    return id;
  }

  void sketch(LinearStep step) {
    const auto place = static_cast<std::int32_t>(plan_.sketches.size());
    plan_.sketches.push_back({sketch_cols(step.parts.front().cols), -1});
    lives_.sketches.emplace_back();
    lives_.sketches.back().at(static_cast<std::int64_t>(op_));
    const Sketching sketching{step.op.in, step.parts.front(), step.op.scale, std::get<Top>(program_.ops[op_ + 1]), place};
    plan_.steps.push_back(SketchActivationsStep{sketching});
    plan_.steps.push_back(BoundsStep{sketching});
    plan_.steps.push_back(SeedsStep{sketching});
    plan_.steps.push_back(RestStep{sketching, std::move(step)});
  }

  // ---------------------------------------------------------------- pairs (a row and one of its experts)
  std::int32_t pair_codes(std::int64_t cols, Codes codes, std::int32_t chosen) {
    require(codes != Codes::bytes, "program '", program_.name, "': experts in codes of 8 bits");
    plan_.quantized.push_back({Rows::tokens, cols, -1, codes, MatrixId::none, chosen});
    lives_.quantized.emplace_back();
    lives_.quantized.back().at(static_cast<std::int64_t>(op_));
    return static_cast<std::int32_t>(plan_.quantized.size()) - 1;
  }
  std::int32_t pair_floats(std::int64_t width, std::int32_t chosen) {
    plan_.pairs.push_back({chosen, activation_stride(width), -1});
    lives_.pairs.emplace_back();
    lives_.pairs.back().at(static_cast<std::int64_t>(op_));
    return static_cast<std::int32_t>(plan_.pairs.size()) - 1;
  }

  // Adds the steps that gather the rows of `in` for `parts`: one step for each kind of codes that the parts need, and one for floats.
  // Returns the index of the floats in CpuPlan::pairs, or -1 if no part multiplies floats.
  std::int32_t gather(const Experts& op, std::span<ProductPart* const> parts, std::int32_t chosen) {
    std::int32_t floats = -1;
    std::vector<std::pair<Codes, std::int32_t>> made;
    for (ProductPart* part : parts) {
      const auto codes = codes_of(weights_.matrices[static_cast<std::size_t>(part->weight)], false);
      if (!codes) {
        if (floats >= 0) continue;
        floats = pair_floats(op.in.width, chosen);
        plan_.steps.push_back(GatherStep{op, -1, floats});
        continue;
      }
      const auto known = std::ranges::find(made, *codes, &std::pair<Codes, std::int32_t>::first);
      part->quantized = known != made.end() ? known->second : pair_codes(op.in.width, *codes, chosen);
      if (known != made.end()) continue;
      made.emplace_back(*codes, part->quantized);
      plan_.steps.push_back(GatherStep{op, part->quantized, -1});
    }
    return floats;
  }

  std::int32_t turns(const RopeTable& table) {
    if (table.inv_freq.empty()) return -1;
    const auto known = std::find(plan_.turns.begin(), plan_.turns.end(), table);
    const auto id = static_cast<std::int32_t>(known - plan_.turns.begin());
    if (known == plan_.turns.end()) plan_.turns.push_back(table);
    return id;
  }

  // Returns the RopeStoreStep to which the next Rope or Store is added. This is the plan's last step if that is a RopeStoreStep without a
  // Store, and otherwise a new step.
  RopeStoreStep& open_rope_store() {
    auto* last = plan_.steps.empty() ? nullptr : std::get_if<RopeStoreStep>(&plan_.steps.back());
    if (last == nullptr || last->shape.heads != 0) last = &std::get<RopeStoreStep>(plan_.steps.emplace_back(RopeStoreStep{}));
    return *last;
  }

  struct Quantized {
    View view;
    std::int32_t id;
  };
  struct Made {
    View view;
    std::size_t step, op;
  };

  const Program& program_;
  const WeightShapes& weights_;
  const Compute compute_;
  const std::vector<const Folded*>& folded_;
  // True if a matrix has a Rounding other than `none`, as in encoders. The activations of matrices with Rounding::none (for example a
  // classifier's) are then not rounded to bfloat16.
  bool says_what_rounds_ = false;
  CpuPlan plan_;
  std::size_t op_ = 0;
  std::vector<Quantized> quantized_now_;  // codes that are still valid for the contents of their views
  std::vector<Made> made_by_norm_;
  PlanLives lives_;
  std::size_t tail_step_ = 0;
  bool in_blocks_ = false;
};

}  // namespace

std::int64_t activation_stride(std::int64_t width) {
  constexpr std::int64_t kLine = 16, kCycle = 512, kApart = 4 * kLine;
  // `beyond` is the number of floats past the last multiple of 2 KiB.
  const std::int64_t stride = round_up(width, kLine), beyond = stride % kCycle;
  if (stride < kCycle - kApart || (beyond >= kApart && beyond <= kCycle - kApart)) return stride;
  return stride - beyond + (beyond < kApart ? 0 : kCycle) + kApart;
}

std::int64_t QuantizedPlace::row_bytes() const {
  constexpr std::int64_t kScale = sizeof(float), kSum = sizeof(std::int32_t), kCode = sizeof(std::int16_t);
  if (codes == Codes::bytes) {
    const std::int64_t code = kernels().matrix.bytes.of_bytes ? 1 : kCode;
    return cols * code + cols / kByteBlock * (kScale + kSum);
  }
  if (codes == Codes::fixed) return pairs * ceil_div(cols, kFixedBlock) * (kFixedBlock * kCode + kScale + kSum);
  return pairs * terms() * (cols + cols / kQuantBlock * (2 * kScale + 2 * kSum));
}

CpuPlan lower(const Program& program, const WeightShapes& weights, Compute compute, const std::vector<const Folded*>& folded) {
  return CpuLowering(program, weights, compute, folded).lower();
}

}  // namespace pumice::cpu
