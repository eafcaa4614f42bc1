#include "core/program_check.h"

#include <cmath>
#include <string>
#include <unordered_set>
#include <variant>

#include "core/checked.h"
#include "core/program_checker.h"

namespace pumice {
namespace {

constexpr std::int32_t kHeadStep = 32;  // in_step is a multiple of this number of columns, a block of 8-bit activations
constexpr std::int32_t kMaxReach = 1 << 20, kMaxStateHeads = 1 << 16;

std::string heads_of(const CacheShape& shape) {
  return str(shape.heads, " kv heads of ", shape.key_dim, " (keys) and ", shape.value_dim, " (values)");
}

class ProgramCheck final : ProgramChecker {
 public:
  ProgramCheck(const Program& program, const WeightShapes& weights) : ProgramChecker(program, weights) {}

  ProgramFacts facts() {
    begin();
    for (const CacheShape& cache : program_.caches) check_heads(cache, "a cache of ");
    for (op_ = 0; op_ < program_.ops.size(); ++op_) {
      kind_ = name(program_.ops[op_]);
      std::visit(*this, program_.ops[op_]);
    }
    end();
    return std::move(facts_);
  }

  void operator()(const Embed& op) {
    write(op.out, "out", Rows::tokens);
    const MatrixId tables[] = {op.tokens, op.positions, op.types};
    const char* const names[] = {"tokens", "positions", "types"};
    for (int i = 0; i < 3; ++i) {
      if (i > 0 && tables[i] == MatrixId::none) continue;
      const MatrixShape& table = matrix(tables[i], names[i]);
      check(table.experts == 1, "table '", table.name, "' has matrices of ", table.experts, " experts");
      check(table.cols == op.out.width, "table '", table.name, "' has rows of ", table.cols, ", `out` takes ", op.out.width);
    }
    if (op.positions != MatrixId::none) {
      facts_.positions_limit = std::min(facts_.positions_limit, matrix(op.positions, "positions").rows);
      facts_.takes_segments = true;
    }
    facts_.takes_ids = true;
  }

  void operator()(const Norm& op) {
    read(op.in, "in");
    if (op.add) read(op.add, "add", rows_of(op.in));
    apart_or_same(op.in, op.out, "in", "out");
    apart_or_same(op.add, op.out, "add", "out");
    const std::int32_t group = op.group == 0 ? op.in.width : op.group;
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    check(!op.add || op.add.width == op.out.width, "`add` is ", op.add.width, " wide, `out` ", op.out.width);
    check(group > 0 && op.in.width % group == 0, "groups of ", op.group, " do not divide ", op.in.width, " columns");
    const std::int32_t values = op.per_column ? op.in.width : group;
    if (op.weight != VectorId::none) sized(op.weight, "weight", values);
    if (op.bias != VectorId::none) sized(op.bias, "bias", values);
    check(op.kind == NormKind::layer || op.bias == VectorId::none, "an rms norm has no bias");
    check(std::isfinite(op.eps) && op.eps >= 0, "eps is ", op.eps);
    write(op.out, "out", rows_of(op.in));
  }

  void operator()(const Linear& op) {
    read(op.in, "in");
    if (op.residual) read(op.residual, "residual", rows_of(op.in));
    apart(op.in, op.out, "in", "out");
    apart_or_same(op.residual, op.out, "residual", "out");
    check(!op.parts.empty(), "no weights");
    std::int64_t cols = 0;
    for (const LinearPart& part : op.parts) {
      const MatrixShape& weight = product(part.weight, op.in, cols);
      if (part.bias != VectorId::none) sized(part.bias, "bias", weight.rows);
      cols += weight.rows;
    }
    check(cols == op.out.width, "weights give ", cols, " columns, `out` takes ", op.out.width);
    check(!op.residual || op.residual.width == op.out.width, "`residual` is ", op.residual.width, " wide, `out` ", op.out.width);
    check(std::isfinite(op.scale) && std::isfinite(op.softcap) && op.softcap >= 0, "scale ", op.scale, ", softcap ", op.softcap);
    check(std::isfinite(op.alpha_p) && std::isfinite(op.alpha_n), "xielu of ", op.alpha_p, " and ", op.alpha_n);
    write(op.out, "out", rows_of(op.in));
  }

  void operator()(const GatedLinear& op) {
    read(op.in, "in");
    apart(op.in, op.out, "in", "out");
    const std::int64_t gate = product(op.gate, op.in, 0).rows, up = product(op.up, op.in, 0).rows;
    if (op.gate_bias != VectorId::none) sized(op.gate_bias, "gate_bias", gate);
    if (op.up_bias != VectorId::none) sized(op.up_bias, "up_bias", up);
    check(op.activation != Activation::xielu, "xielu belongs to Linear");
    check(gate == op.out.width && up == op.out.width, "gate and up give ", gate, " and ", up, " columns, `out` takes ", op.out.width);
    write(op.out, "out", rows_of(op.in));
  }

  void operator()(const HeadLinear& op) {
    read(op.in, "in");
    apart(op.in, op.out, "in", "out");
    const MatrixShape& weight = matrix(op.weight, "weight");
    const std::int64_t last = weight.experts - 1, rows = weight.rows_each();
    check(op.in_step == 0 || op.in_step >= weight.cols, "heads of ", weight.cols, " columns are ", op.in_step, " columns apart");
    check(!info(weight.format).quantized || op.in_step % kHeadStep == 0, "heads are ", op.in_step, " columns apart; in products with ",
          info(weight.format).name, " a multiple of ", kHeadStep);
    check(op.in.width == last * op.in_step + weight.cols, "'", weight.name, "' takes ", weight.experts, " heads of ", weight.cols,
          " columns, its input has ", op.in.width);
    check(op.out_step >= rows && op.out.width == last * op.out_step + rows, "'", weight.name, "' gives ", weight.experts, " heads of ",
          rows, " columns, ", op.out_step, " apart; `out` has ", op.out.width);
    view(op.out, "out");
    for (std::int64_t head = 0; head <= last; ++head)
      write({op.out.slot, op.out.col + static_cast<std::int32_t>(head * op.out_step), static_cast<std::int32_t>(rows)}, "out",
            rows_of(op.in));
  }

  void operator()(const Route& op) {
    read(op.logits, "logits", Rows::tokens);
    apart(op.logits, op.out, "logits", "out");
    const std::int32_t experts = op.logits.width;
    check(experts <= kMaxExperts && op.chosen >= 1 && op.chosen <= kMaxChosen && op.chosen <= experts, op.chosen, " of ", experts,
          " experts are chosen; at most ", kMaxChosen, " of ", kMaxExperts);
    check(op.groups >= 1 && experts % op.groups == 0 && op.kept >= 1 && op.kept <= op.groups, op.kept, " of ", op.groups, " groups of ",
          experts, " experts are kept");
    check(op.groups == 1 || (experts / op.groups >= 2 && op.chosen <= op.kept * (experts / op.groups)), op.chosen, " experts of ", op.kept,
          " groups of ", experts / op.groups, ": a group has two or more, and those that are kept have the chosen ones");
    check(op.out.width == 2 * op.chosen, "`out` is ", op.out.width, " wide, not ", 2 * op.chosen);
    for (const VectorId vector : {op.bias, op.scales})
      if (vector != VectorId::none) sized(vector, "bias or scales", experts);
    check(std::isfinite(op.floor) && op.floor >= 0 && std::isfinite(op.scale), "floor ", op.floor, ", scale ", op.scale);
    write(op.out, "out", Rows::tokens);
  }

  void operator()(const Experts& op) {
    read(op.in, "in", Rows::tokens);
    read(op.route, "route", Rows::tokens);
    if (op.residual) read(op.residual, "residual", Rows::tokens);
    apart(op.in, op.out, "in", "out");
    apart(op.route, op.out, "route", "out");
    apart_or_same(op.residual, op.out, "residual", "out");
    const MatrixShape &up = matrix(op.up, "up"), &down = matrix(op.down, "down");
    const bool gated = op.gate != MatrixId::none;
    const MatrixShape& gate = gated ? matrix(op.gate, "gate") : up;
    const std::int64_t width = up.rows_each();
    check(up.experts == down.experts && up.experts == gate.experts && up.experts <= kMaxExperts, "'", up.name, "' has ", up.experts,
          " experts, the others ", gate.experts, " and ", down.experts, "; at most ", kMaxExperts);
    check(up.cols == op.in.width && gate.cols == op.in.width && gate.rows == up.rows, "'", up.name, "' and gate take ", up.cols, " and ",
          gate.cols, " columns and give ", width, " and ", gate.rows_each(), "; the input has ", op.in.width);
    check(down.cols == width && down.rows_each() == op.out.width, "'", down.name, "' takes ", down.cols, " columns of ", width,
          " and gives ", down.rows_each(), " of ", op.out.width);
    check(!op.residual || op.residual.width == op.out.width, "`residual` is ", op.residual.width, " wide, `out` ", op.out.width);
    check(op.route.width % 2 == 0 && op.route.width / 2 <= std::min(kMaxChosen, up.experts), "`route` is ", op.route.width, " wide for ",
          up.experts, " experts");
    check(gated || (op.gate_bias == VectorId::none && op.limit == 0 && op.shift == 0), "gate_bias, limit and shift belong to a gate");
    if (op.gate_bias != VectorId::none) sized(op.gate_bias, "gate_bias", gate.rows);
    if (op.up_bias != VectorId::none) sized(op.up_bias, "up_bias", up.rows);
    if (op.down_bias != VectorId::none) sized(op.down_bias, "down_bias", down.rows);
    check(op.activation != Activation::xielu, "xielu belongs to Linear");
    check(std::isfinite(op.limit) && op.limit >= 0 && std::isfinite(op.shift) && std::isfinite(op.scale), "limit ", op.limit, ", shift ",
          op.shift, ", scale ", op.scale);
    write(op.out, "out", Rows::tokens);
    looks_beyond_one_row();  // because rows of one expert are computed together
  }

  void operator()(const Multiply& op) {
    read(op.a, "a");
    if (op.b) read(op.b, "b", rows_of(op.a));
    apart_or_same(op.a, op.out, "a", "out");
    apart(op.b, op.out, "b", "out");
    check(op.a.width == op.out.width, "`a` is ", op.a.width, " wide, `out` ", op.out.width);
    check(!op.b || op.a.width % op.b.width == 0, "`b` of ", op.b.width, " columns does not divide `a` of ", op.a.width);
    check(op.b || op.activation == Activation::none, "an activation without a `b`");
    check(op.activation != Activation::xielu, "xielu belongs to Linear");
    check(std::isfinite(op.scale), "scale ", op.scale);
    write(op.out, "out", rows_of(op.a));
  }

  void operator()(const Rope& op) {
    read(op.x, "x", Rows::tokens);
    check(op.head_dim > 0 && op.x.width % op.head_dim == 0, "x of ", op.x.width, " columns is not made of heads of ", op.head_dim);
    check(static_cast<std::int64_t>(op.table.inv_freq.size()) * 2 <= op.head_dim, op.table.inv_freq.size(), " pairs in a head of ",
          op.head_dim);
    if (!op.table.inv_freq.empty()) check(std::isfinite(op.table.magnitude), "the rope's magnitude is ", op.table.magnitude);
    for (const auto* list : {&op.table.inv_freq, &op.table.long_inv_freq}) {
      for (const float f : *list) check(std::isfinite(f), "a rope frequency is ", f);
    }
    if (op.table.original != 0) {
      check(op.table.original > 0, "the rope's original length is ", op.table.original);
      check(op.table.long_inv_freq.empty() || op.table.long_inv_freq.size() == op.table.inv_freq.size(), op.table.long_inv_freq.size(),
            " rope frequencies of long texts, ", op.table.inv_freq.size(), " of others");
      const bool sound = std::isfinite(op.table.base) && op.table.base > 0 && op.table.growth > 0 && op.table.growth <= 1e6f;
      check(sound || !op.table.long_inv_freq.empty(), "a rope's base ", op.table.base, " grows by ", op.table.growth);
    }
    check(std::isfinite(op.temperature) && op.temperature_length >= 0 && op.temperature_offset >= 0, "temperature ", op.temperature, " by ",
          op.temperature_length, " positions, from ", op.temperature_offset);
    write(op.x, "x", Rows::tokens);
    facts_.takes_segments = true;
    looks_beyond_one_row();
  }

  void operator()(const Store& op) {
    const CacheShape& shape = cache(op.cache);
    for (const View* view : {&op.k, &op.v}) read(*view, "k or v", Rows::tokens);
    const std::int64_t heads = shape.heads;
    check(op.k.width == heads * shape.key_dim && op.v.width == heads * shape.value_dim, "k and v are ", op.k.width, " and ", op.v.width,
          " wide, the cache keeps ", heads_of(shape));
    stored_[static_cast<std::size_t>(op.cache)] = true;
    facts_.takes_segments = true;
    looks_beyond_one_row();
  }

  void operator()(const Attend& op) {
    read(op.q, "q", Rows::tokens);
    apart_or_same(op.q, op.out, "q", "out");
    const CacheShape own{op.kv_heads, op.key_dim, op.value_dim};
    check_heads(own, "attention over ");
    const std::int64_t heads = op.q.width / op.key_dim, keys = std::int64_t{op.kv_heads} * op.key_dim;
    check(op.q.width % keys == 0 && op.out.width == heads * op.value_dim, "q and out are ", op.q.width, " and ", op.out.width,
          " wide, not as many heads of each, for ", heads_of(own));
    check(std::isfinite(op.scale) && std::isfinite(op.softcap) && op.softcap >= 0 && op.window >= 0, "scale ", op.scale, ", softcap ",
          op.softcap, ", window ", op.window);
    check(op.chunk == 0 || (op.chunk > 0 && op.causal && op.window == 0), "chunks of ", op.chunk, " positions, window ", op.window,
          op.causal ? "" : ", not causal");
    check(op.reach >= 0 && op.reach <= kMaxReach, "reach ", op.reach, " is not 0 to ", kMaxReach);
    if (op.bias != VectorId::none) sized(op.bias, "bias", heads * (2 * std::int64_t{op.reach} + 1));
    if (op.slopes != VectorId::none) sized(op.slopes, "slopes", heads);
    if (op.sinks != VectorId::none) sized(op.sinks, "sinks", heads);
    attend_places(op, heads);
    if (op.cache != CacheId::none) {
      const CacheShape& shape = cache(op.cache);
      check(op.causal, "attention over a cache is causal");
      check(shape == own, heads_of(own), ", the cache keeps ", heads_of(shape));
      check(program_.stored_by_others || stored_[static_cast<std::size_t>(op.cache)], "nothing was stored in cache ",
            static_cast<std::int32_t>(op.cache), " before");
    } else {
      for (const View* view : {&op.k, &op.v}) {
        read(*view, "k or v", Rows::tokens);
        apart(*view, op.out, "k or v", "out");
      }
      check(op.k.width == keys && op.v.width == std::int64_t{op.kv_heads} * op.value_dim, "k and v are ", op.k.width, " and ", op.v.width,
            " wide, not ", heads_of(own));
      facts_.keeps_no_past = true;
    }
    const std::int64_t unseen = op.causal || op.places != VectorId::none ? 0 : op.window > 0 ? op.window : INT64_MAX;
    facts_.unseen_limit = std::min(facts_.unseen_limit, unseen);
    write(op.out, "out", Rows::tokens);
    facts_.takes_segments = true;
    looks_beyond_one_row();
  }

  void operator()(const Conv& op) {
    read(op.in, "in", Rows::tokens);
    apart(op.in, op.out, "in", "out");
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    check(op.width >= 1 && op.width <= kMaxTaps, op.width, " taps, not 1 to ", kMaxTaps);
    check(op.activation != Activation::xielu, "xielu belongs to Linear");
    sized(op.taps, "taps", std::int64_t{op.width} * op.in.width);
    if (op.bias != VectorId::none) sized(op.bias, "bias", op.in.width);
    check(!op.centred || (op.state == StateId::none && op.width % 2 == 1), "a centred convolution of ", op.width,
          " taps: it has no state and an odd number of taps");
    carry(op.state, {1, op.width - 1, op.in.width});
    write(op.out, "out", Rows::tokens);
  }

  void operator()(const Scan& op) {
    const bool delta = op.rule == ScanRule::delta;
    const auto fits = [](std::int32_t dim) { return dim > 0 && dim <= kMaxStateDim; };
    check(fits(op.key_dim) && fits(op.value_dim) && op.key_heads > 0, op.key_heads, " key heads of ", op.key_dim, ", values of ",
          op.value_dim, "; needed: at least one head of 1 to ", kMaxStateDim, " columns");
    const std::int64_t keys = std::int64_t{op.key_heads} * op.key_dim, heads = op.v.width / op.value_dim;
    for (const View* view : {&op.q, &op.k, &op.v, &op.step}) read(*view, "q, k, v or step", Rows::tokens);
    check(static_cast<bool>(op.beta) == delta, "`beta` belongs to the delta rule");
    if (delta) read(op.beta, "beta", Rows::tokens);
    for (const View* view : {&op.q, &op.k, &op.v, &op.step, &op.beta}) apart(*view, op.out, "q, k, v, step or beta", "out");
    check(op.q.width == keys && op.k.width == keys, "q and k are ", op.q.width, " and ", op.k.width, " wide, not ", keys);
    check(op.v.width % op.value_dim == 0 && heads % op.key_heads == 0 && heads <= kMaxStateHeads, "v is ", op.v.width,
          " wide, not a whole number of heads of ", op.value_dim, " for each of ", op.key_heads, " key heads, or more than ",
          kMaxStateHeads);
    check(op.out.width == op.v.width && op.step.width == heads && (!delta || op.beta.width == heads), "`out`, `step` and `beta` are ",
          op.out.width, ", ", op.step.width, " and ", op.beta.width, " wide for ", heads, " heads");
    sized(op.rate, "rate", heads);
    if (op.step_bias != VectorId::none) sized(op.step_bias, "step_bias", heads);
    check(op.skip == VectorId::none || !delta, "`skip` belongs to the rule of Mamba-2");
    if (op.skip != VectorId::none) sized(op.skip, "skip", heads);
    check(std::isfinite(op.floor) && op.floor >= 0 && std::isfinite(op.strength), "floor ", op.floor, ", strength ", op.strength);
    carry(op.state, {static_cast<std::int32_t>(heads), op.key_dim, op.value_dim});
    write(op.out, "out", Rows::tokens);
  }

  void operator()(const Select& op) {
    read(op.in, "in", Rows::tokens);
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    write(op.out, "out", Rows::selected);
    facts_.takes_selected = true;
    looks_beyond_one_row();
  }

  void operator()(const Pool& op) {
    read(op.in, "in", Rows::tokens);
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    write(op.out, "out", Rows::segments);
    facts_.takes_segments = true;
    looks_beyond_one_row();
  }

  void operator()(const LogProb& op) {
    read(op.logits, "logits", Rows::tokens);
    check(op.out.width == 1, "`out` is ", op.out.width, " wide, not 1");
    apart(op.logits, op.out, "logits", "out");
    write(op.out, "out", Rows::tokens);
    facts_.takes_ids = true;
    facts_.reduces_logits = true;
  }

  void operator()(const Top& op) {
    read(op.logits, "logits", Rows::tokens);
    check(op.k >= 1 && op.k <= kMostTop, "k is ", op.k, ", not 1 to ", kMostTop);
    check(op.reported >= 0 && op.reported <= kMaxWidth, "reported is ", op.reported, ", not 0 to ", kMaxWidth);
    check(op.out.width == top_width(op.k, op.reported), "`out` is ", op.out.width, " wide, not ", top_width(op.k, op.reported));
    apart(op.logits, op.out, "logits", "out");
    write(op.out, "out", Rows::tokens);
    facts_.reduces_logits = true;
  }

 private:
  void check_heads(const CacheShape& shape, const char* what) const {
    const auto fits = [](std::int32_t dim, std::int32_t most) { return dim > 0 && dim <= most; };
    check(shape.heads > 0 && shape.heads <= 65536 && fits(shape.key_dim, kMaxKeyDim) && fits(shape.value_dim, kMaxValueDim), what,
          heads_of(shape), "; needed: 1 to 65536 heads of 1 to ", kMaxKeyDim, " (keys) and to ", kMaxValueDim, " (values)");
  }

  void attend_places(const Attend& op, std::int64_t heads) {
    const bool given = op.places != VectorId::none;
    check(given == (op.by_query || op.by_key), "`places` and what they choose from (`by_query`, `by_key`) belong together");
    if (!given) return;
    check(op.cache == CacheId::none && op.bias == VectorId::none && op.slopes == VectorId::none,
          "`places` stand beside a cache, a bias or slopes");
    sized(op.places, "places", 2 * std::int64_t{op.reach} + 1);
    const VectorShape& places = weights_.vectors[static_cast<std::size_t>(op.places)];
    for (const View* view : {&op.by_query, &op.by_key}) {
      if (!*view) continue;
      read(*view, "by_query or by_key", Rows::tokens);
      apart(*view, op.out, "by_query or by_key", "out");
      check(view->width % heads == 0 && places.indices > 0 && places.indices <= view->width / heads, "'", places.name,
            "' asks for numbers below ", places.indices, " (0: not whole numbers) of ", view->width, " columns for ", heads, " heads");
    }
    check(!op.by_query || !op.by_key || (op.by_query.slot == op.by_key.slot && op.by_query.width == op.by_key.width),
          "`by_query` and `by_key` are of slots ", op.by_query.slot, " and ", op.by_key.slot, ", ", op.by_query.width, " and ",
          op.by_key.width, " wide; one slot and one width are needed");
  }
};

std::int64_t positions(const Segment& segment) { return std::int64_t{segment.past} + segment.rows; }

std::string where(const Program& program) { return "program '" + program.name + "': "; }

void check_reported(const std::string& in, const Top& op, const Batch& batch) {
  if (batch.reported_first.empty()) return;
  const auto rows = static_cast<std::size_t>(batch.rows);
  require(batch.reported_first.size() == rows + 1, in, batch.reported_first.size(), " bounds of reported ids for ", rows, " rows");
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int64_t first = batch.reported_first[r], end = batch.reported_first[r + 1];
    require(first >= 0 && first <= end && end <= static_cast<std::int64_t>(batch.reported.size()) && end - first <= op.reported, in, "row ",
            r, " has reported ids ", first, " to ", end, " of ", batch.reported.size(), "; at most ", op.reported, " can be");
    std::int64_t before = -1;
    for (const std::int32_t id : batch.reported.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first))) {
      require(id > before && id < op.logits.width, in, "reported id ", id, " in row ", r, " follows ", before, "; ids are 0 to ",
              op.logits.width - 1, ", ascending");
      before = id;
    }
  }
}

void check_ranked(const std::string& in, const Top& op, const Batch& batch) {
  if (batch.ranked.empty()) return;
  require(batch.ranked.size() == static_cast<std::size_t>(batch.rows), in, batch.ranked.size(), " numbers of ranked logits for ",
          batch.rows, " rows");
  for (const std::int32_t ranked : batch.ranked) require(ranked >= 1 && ranked <= op.k, in, ranked, " ranked logits; 1 to ", op.k);
}

void check_allowed(const std::string& in, const Top& op, const Batch& batch) {
  if (batch.allowed_first.empty()) return;
  const auto rows = static_cast<std::size_t>(batch.rows), words = mask_words(op.logits.width);
  require(batch.allowed_first.size() == rows, in, batch.allowed_first.size(), " masks of allowed ids for ", rows, " rows");
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int64_t first = batch.allowed_first[r];
    require(first == -1 || (first >= 0 && first + static_cast<std::int64_t>(words) <= static_cast<std::int64_t>(batch.allowed.size())), in,
            "the mask of row ", r, " begins at word ", first, " of ", batch.allowed.size(), "; ", words, " words are needed");
  }
}

}  // namespace

std::int64_t indices_of(std::span<const float> values) {
  float largest = -1;
  for (const float value : values) {
    if (!(value >= 0 && value < static_cast<float>(kMaxWidth) && value == std::floor(value)))
      return 0;  // for most vectors in the first round, because their first value is not a whole number
    largest = std::max(largest, value);
  }
  return static_cast<std::int64_t>(largest) + 1;
}

MatrixShape shape_of(const Matrix& m) { return {m.name, m.format, m.rows, m.cols, m.experts, true, m.rounding, m.read_floats != nullptr}; }

WeightShapes shapes_of(const Weights& weights) {
  WeightShapes shapes;
  for (const Matrix& m : weights.matrices) shapes.matrices.push_back(shape_of(m));
  for (const Vector& v : weights.vectors)
    shapes.vectors.push_back({v.name, static_cast<std::int64_t>(v.values.size()), indices_of(v.values)});
  return shapes;
}

ProgramFacts check_program(const Program& program, const WeightShapes& weights) { return ProgramCheck(program, weights).facts(); }

std::vector<bool> used_matrices(std::span<const Program* const> programs, const WeightShapes& weights) {
  std::vector<bool> all(weights.matrices.size(), programs.empty());
  for (const Program* program : programs) {
    const std::vector<bool> used = check_program(*program, weights).used;
    for (std::size_t m = 0; m < all.size(); ++m) all[m] = all[m] || used[m];
  }
  return all;
}

void check_batch(const Program& program, const ProgramFacts& facts, const WeightShapes& weights, const Batch& batch, const Io& io) {
  const std::string in = where(program);
  const auto rows = static_cast<std::size_t>(std::max(0, batch.rows));
  require(batch.rows >= 0, in, batch.rows, " rows");
  if (facts.takes_ids) require(batch.ids.size() == rows, in, batch.ids.size(), " ids for ", rows, " rows");
  require(batch.types.empty() || batch.types.size() == rows, in, batch.types.size(), " types for ", rows, " rows");
  if (facts.takes_segments) {
    std::int64_t next = 0;
    for (const Segment& segment : batch.segments) {
      require(segment.rows > 0 && segment.past >= 0 && segment.first == next && positions(segment) <= INT32_MAX - kPageTokens &&
                  segment.length >= 0 && segment.ahead >= 0 && segment.ahead <= kPageTokens,
              in, "a segment of rows ", segment.first, " + ", segment.rows, ", past ", segment.past, ", length ", segment.length,
              ", ahead ", segment.ahead, " follows row ", next);
      require(segment.prompt >= 0 && segment.prompt < segment.rows, in, "a segment of ", segment.rows, " rows has a prompt of ",
              segment.prompt);
      require(segment.unseen >= 0 && segment.unseen < segment.rows, in, "a segment of ", segment.rows, " rows has ", segment.unseen,
              " that nobody attends to");
      next += segment.rows;
    }
    require(next == batch.rows, in, "segments cover ", next, " of ", batch.rows, " rows");
  }
  for (const Segment& segment : batch.segments) {
    if (facts.keeps_no_past) require(segment.past == 0, in, "an encoder's segment has a past of ", segment.past);
    if (segment.unseen > facts.unseen_limit)
      fail(ErrorKind::unsupported_model, in, segment.unseen, " tokens of a text that nobody attends to; in this model it may be ",
           facts.unseen_limit, " (causal attention and attention by place have none, a window as many as it is wide)");
    if (positions(segment) > facts.positions_limit) {
      fail(ErrorKind::context_length, in, "a text of ", positions(segment), " tokens; the model has positions for ", facts.positions_limit);
    }
  }
  if (facts.takes_selected) {
    std::int64_t before = -1;
    for (const std::int32_t row : batch.selected) {
      require(row > before && row < batch.rows, in, "selected row ", row, " after ", before, " of ", batch.rows, " rows");
      before = row;
    }
  }
  const auto in_range = [&](std::span<const std::int32_t> values, std::int64_t limit, const char* what) {
    for (std::size_t r = 0; r < values.size(); ++r) {
      require(values[r] >= 0 && values[r] < limit, in, what, " ", values[r], " in row ", r, " is not in 0 to ", limit - 1);
    }
  };
  const auto table_rows = [&](MatrixId table) { return weights.matrices[static_cast<std::size_t>(table)].rows; };
  for (const Op& op : program.ops) {
    if (const auto* embed = std::get_if<Embed>(&op)) {
      in_range(batch.ids, table_rows(embed->tokens), "token id");
      if (embed->types != MatrixId::none) in_range(batch.types, table_rows(embed->types), "token type");
    } else if (const auto* log_prob = std::get_if<LogProb>(&op)) {
      in_range(batch.ids, log_prob->logits.width, "target id");
    } else if (const auto* top = std::get_if<Top>(&op)) {
      check_reported(in, *top, batch);
      check_ranked(in, *top, batch);
      check_allowed(in, *top, batch);
    }
  }
  const auto floats = [&](std::int32_t slot) {
    if (slot < 0) return std::size_t{0};
    const SlotShape& shape = program.slots[static_cast<std::size_t>(slot)];
    const std::size_t count = shape.rows == Rows::tokens     ? rows
                              : shape.rows == Rows::segments ? batch.segments.size()
                                                             : batch.selected.size();
    return count * static_cast<std::size_t>(shape.width);
  };
  require(io.in.size() == floats(program.input), in, "input of ", io.in.size(), " floats, needed are ", floats(program.input));
  require(io.out.size() == floats(program.output), in, "output of ", io.out.size(), " floats, needed are ", floats(program.output));
}

void check_pages(const Program& program, std::span<const CacheShape> store, std::int32_t pages, const Batch& batch) {
  if (program.caches.empty()) return;
  const std::string in = where(program);
  require(store.size() == program.caches.size(), in, "has ", program.caches.size(), " caches, the store ", store.size());
  for (std::size_t c = 0; c < program.caches.size(); ++c) {
    const CacheShape &needed = program.caches[c], &found = store[c];
    require(needed == found, in, "cache ", c, " of ", heads_of(needed), ", the store has ", heads_of(found));
  }
  for (const Segment& segment : batch.segments) {
    const auto needed = static_cast<std::size_t>(ceil_div(positions(segment), kPageTokens));
    require(segment.pages.size() >= needed, in, segment.pages.size(), " pages for ", positions(segment), " positions");
    for (std::size_t p = 0; p < needed; ++p) {
      require(segment.pages[p] >= 0 && segment.pages[p] < pages, in, "page ", segment.pages[p], " of ", pages);
    }
  }
}

void check_states(const Program& program, std::span<const StateShape> store, std::int32_t states, const Batch& batch) {
  if (program.states.empty()) return;
  const std::string in = where(program);
  require(std::ranges::equal(program.states, store), in, "has ", program.states.size(), " states, the store others (", store.size(), ")");
  std::unordered_set<std::int32_t> read, written;
  for (const Segment& segment : batch.segments) {
    require((segment.state >= 0) == (segment.past > 0) && segment.state < states, in, "a segment with a past of ", segment.past,
            " continues from state ", segment.state, " of ", states);
    if (segment.state >= 0) read.insert(segment.state);
    std::int32_t before = 0;
    for (const SavedState& saved : segment.saves) {
      require(saved.rows > before && saved.rows <= segment.rows, in, "a state is saved after ", saved.rows, " of ", segment.rows,
              " rows, after one of ", before);
      require(saved.state >= 0 && saved.state < states && written.insert(saved.state).second, in, "saves state ", saved.state, " of ",
              states, ", or twice");
      before = saved.rows;
    }
  }
  for (const std::int32_t state : written) require(!read.contains(state), in, "state ", state, " is read and written");
}

}  // namespace pumice
