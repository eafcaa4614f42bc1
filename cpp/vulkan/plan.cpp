#include "vulkan/plan.h"

#include <algorithm>

#include "core/checked.h"
#include "vulkan/numbers.h"
#include "vulkan/tiles.h"

namespace pumice::vulkan {
namespace {

std::uint64_t bytes_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(a, b, "scratch of a device"));
}

// Maximum number of rows in a block of Experts. A batch with more rows is computed block after block, so that the memory for the results of
// the products has a limit.
constexpr std::int64_t kMostExpertRows = 2048;

// A pair is a row and one of the experts that are chosen for it. Returns the number of bytes that one pair takes in scratch memory, where a
// product of Experts writes `width` floats for each pair.
std::uint64_t pair_bytes(std::int64_t width) { return static_cast<std::uint64_t>(slot_stride(width)) * 4; }

// Returns the number of bytes that Experts needs for 8-bit activations. The activations of `up` and of `down` use the same memory, so the
// larger of the two sizes counts.
std::uint64_t expert_quantized_bytes(const ExpertsStep& step, std::int64_t rows) {
  const std::int64_t up = step.int8_up ? params::quantized_row_words(step.op.in.width) : 0,
                     down = step.int8_down ? step.chosen * params::quantized_row_words(step.width) : 0;
  return bytes_of(std::min(rows, step.block_rows), std::max(up, down) * 4);
}

// For a ScanArea, gate_bytes() returns the number of bytes that the factors of one row take, and carry_bytes() the number of bytes that the
// state matrices of one segment take.
std::uint64_t gate_bytes(const Scan& op) { return static_cast<std::uint64_t>(op.step.width) * params::kGateWords * 4; }
std::uint64_t carry_bytes(const Scan& op) { return aligned(state_words({op.step.width, op.key_dim, op.value_dim}) * 4); }

class GpuPlanner {
 public:
  GpuPlanner(GpuPlan& plan, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device)
      : plan_(plan), weights_(weights), allowed_(allowed), device_(device) {}

  void operator()(const Embed& op) {
    plan_.positions |= op.positions != MatrixId::none;
    plan_.types |= op.types != MatrixId::none;
    step(op);
  }
  void operator()(const Norm& op) { step(op); }
  void operator()(const Linear& op) {
    step(op);
    if (op.precise) return;
    for (const LinearPart& part : op.parts) product(part.weight, op.in.width);
  }
  void operator()(const GatedLinear& op) {
    product(op.gate, op.in.width), product(op.up, op.in.width);
    step(op);
  }
  void operator()(const HeadLinear& op) {
    product(op.weight, op.in.width);
    step(op);
  }
  void operator()(const Route& op) { step(op); }
  void operator()(const Experts& op) {
    const MatrixShape &up = shape(op.up), &down = shape(op.down);
    ExpertsStep result{.op = op, .experts = up.experts, .chosen = op.route.width / 2, .width = static_cast<std::int32_t>(down.cols)};
    const std::uint64_t range = device_.limits.range, row = pair_bytes(std::max(result.width, op.out.width)) * result.chosen;
    const std::uint64_t list = 4 * static_cast<std::uint64_t>(params::list_words(result.chosen, result.chosen + result.experts));
    if (row > range || list > range) {
      fail(ErrorKind::unsupported_model, "program '", plan_.program.name, "': Experts needs ", std::max(row, list), " bytes at once for ",
           result.chosen, " of ", result.experts, " experts of ", result.width, " columns, ", device_.name, " binds at most ", range,
           ". Use another device (device=\"cpu\")");
    }
    result.block_rows =
        std::min({kMostExpertRows, rows_per_binding({op.in, op.route, op.out, op.residual}), static_cast<std::int64_t>(range / row)});
    while (result.block_rows > 1 && expert_area(result, result.block_rows).list_bytes > range) result.block_rows /= 2;
    const auto rounds = [&](const MatrixShape& m) { return takes_int8(m.format, m.rounding); };
    result.int8_up = rounds(up) && (op.gate == MatrixId::none || rounds(shape(op.gate)));
    result.int8_down = rounds(down);
    plan_.variants.cooperative_matrix = allowed_.cooperative_matrix;
    plan_.variants.integer_dot |= allowed_.integer_dot && (result.int8_up || result.int8_down);
    step(result);
  }
  void operator()(const Multiply& op) { step(op); }

  void operator()(const Rope& op) {
    const Temperature heat{op.temperature, op.temperature_length, op.temperature_offset};
    const std::int32_t table = op.table.inv_freq.empty() ? -1 : index_of(plan_.ropes, op.table);
    const std::int32_t temperature = heat.temperature == 0 || heat.length == 0 ? -1 : index_of(plan_.temperatures, heat);
    if (table < 0 && temperature < 0) return;
    RopeStore* q = open_rope(op.head_dim);
    if (q != nullptr && !q->k && q->table == table && temperature < 0 && !overlap(q->q, op.x)) {
      q->k = op.x;
    } else {
      step(RopeStore{.q = op.x, .key_dim = op.head_dim, .value_dim = op.head_dim, .table = table, .temperature = temperature});
    }
  }
  void operator()(const Store& op) {
    plan_.cached = true;
    const CacheShape& shape = plan_.program.caches[static_cast<std::size_t>(op.cache)];
    store({.k = op.k, .v = op.v, .key_dim = shape.key_dim, .value_dim = shape.value_dim, .pages = Pages::cache, .cache = op.cache});
  }
  void operator()(const Attend& op) {
    const bool cached = op.cache != CacheId::none;
    (cached ? plan_.cached : plan_.kept) = true;
    if (!cached) store({.k = op.k, .v = op.v, .key_dim = op.key_dim, .value_dim = op.value_dim, .pages = Pages::kept});
    const std::int32_t heads_per_kv = op.q.width / op.key_dim / op.kv_heads;
    const AttendShape shape{heads_per_kv, op.kv_heads, op.key_dim, op.value_dim, cached, op.causal, rows_per_binding({op.q, op.out})};
    step(AttendStep{op, index_of(plan_.attends, shape), distances(op)});
  }
  void operator()(const Conv& op) {
    const std::int64_t halo = op.width - 1, rows = rows_per_binding({op.in}) - halo;
    if (rows < 1) {
      fail(ErrorKind::unsupported_model, "program '", plan_.program.name, "': Conv of ", op.width, " taps reads as many rows of ",
           stride_bytes(op.in), " bytes at once, ", device_.name, " binds at most ", device_.limits.range);
    }
    // A workgroup computes the rows of a span one after another. So long segments are cut into several spans, which several workgroups
    // compute at the same time.
    const SpanShape shape{
        .rows = 16, .block_rows = std::min(rows, rows_per_binding({op.out})), .reach = halo, .stateful = op.state != StateId::none};
    step(ConvStep{op, index_of(plan_.spans, shape)});
  }
  void operator()(const Scan& op) {
    const std::uint64_t row = gate_bytes(op), carried = 2 * carry_bytes(op), range = device_.limits.range;
    if (carried + row + 256 > range) {
      fail(ErrorKind::unsupported_model, "program '", plan_.program.name, "': Scan of ", op.step.width, " heads of ", op.key_dim, " x ",
           op.value_dim, " needs ", carried + row, " bytes at once, ", device_.name, " binds at most ", range);
    }
    // `work` limits how long one workgroup runs, because a submission cannot end in the middle of a workgroup. The limit is the number of
    // batch rows times the number of rows of the scan's matrix (at least 32, because loads and barriers make smaller matrices as slow).
    // With a matrix of 128 x 128, 256 batch rows take about 5 ms on one CPU thread, and 2,048 batch rows take about 1 ms on a small GPU.
    const std::int64_t work = device_.type == DeviceType::software ? 1 << 15 : 1 << 18;
    const SpanShape shape{.rows = work / std::max(32, op.key_dim),
                          .block_rows = std::min(rows_per_binding({op.q, op.k, op.v, op.step, op.beta, op.out}),
                                                 static_cast<std::int64_t>((range - carried - 256) / row)),
                          .reach = 1,
                          .chained = true,
                          .stateful = op.state != StateId::none};
    step(ScanStep{op, index_of(plan_.spans, shape)});
  }
  void operator()(const Select& op) { step(op); }
  void operator()(const Pool& op) { step(op); }
  void operator()(const LogProb& op) { step(op); }
  void operator()(const Top& op) { step(TopStep{op, tops_++}); }

 private:
  const MatrixShape& shape(MatrixId id) const { return weights_.matrices[static_cast<std::size_t>(id)]; }
  void step(GpuStep step) { plan_.steps.push_back(std::move(step)); }

  std::uint64_t stride_bytes(const View& v) const {
    return static_cast<std::uint64_t>(slot_stride(plan_.program.slots[static_cast<std::size_t>(v.slot)].width)) * 4;
  }
  // Returns the largest number of rows that fit in one binding for each of these views, or 1 if not even one row fits.
  std::int64_t rows_per_binding(std::initializer_list<View> views) const {
    std::uint64_t widest = 1;
    for (const View& v : views) {
      if (v) widest = std::max(widest, stride_bytes(v));
    }
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(device_.limits.range / widest));
  }

  template <class T>
  static std::int32_t index_of(std::vector<T>& all, const T& item) {
    const auto known = std::find(all.begin(), all.end(), item);
    const auto index = static_cast<std::int32_t>(known - all.begin());
    if (known == all.end()) all.push_back(item);
    return index;
  }

  // Returns the last step if it rotates heads of this size and does not store them in pages yet, else null.
  RopeStore* open_rope(std::int32_t head_dim) {
    auto* last = plan_.steps.empty() ? nullptr : std::get_if<RopeStore>(&plan_.steps.back());
    return last != nullptr && last->pages == Pages::none && last->key_dim == head_dim ? last : nullptr;
  }
  // Adds this store to the last step if that step rotates the keys that are to be stored. Otherwise, or if the last step also rotates
  // columns of the values, makes a separate step for the store.
  void store(const RopeStore& store) {
    RopeStore* turn = open_rope(store.key_dim);
    // If only k was rotated, or if k was rotated before q, the step has k in its member `q`. The two members are then swapped.
    if (turn != nullptr && turn->temperature < 0 && turn->q == store.k) std::swap(turn->q, turn->k);
    if (turn == nullptr || turn->k != store.k || overlap(store.v, turn->k) || overlap(store.v, turn->q)) return step(store);
    turn->v = store.v;
    turn->value_dim = store.value_dim;
    turn->pages = store.pages;
    turn->cache = store.cache;
  }

  std::int32_t distances(const Attend& op) {
    const bool placed = op.places != VectorId::none;
    if (op.bias == VectorId::none && !placed) return -1;
    Distances distances{.reach = static_cast<std::uint32_t>(op.reach)};
    if (placed) {
      const View& any = op.by_query ? op.by_query : op.by_key;
      distances.by_query_at = static_cast<std::uint32_t>(op.by_query ? op.by_query.col : 0);
      distances.by_key_at = static_cast<std::uint32_t>(op.by_key ? op.by_key.col : 0);
      distances.by_stride = static_cast<std::uint32_t>(slot_stride(plan_.program.slots[static_cast<std::size_t>(any.slot)].width));
      distances.by_head = static_cast<std::uint32_t>(any.width / (op.q.width / op.key_dim));
    }
    return index_of(plan_.distances, distances);
  }

  void product(MatrixId id, std::int32_t cols) {
    plan_.variants.cooperative_matrix = allowed_.cooperative_matrix;
    const MatrixShape& m = shape(id);
    if (!allowed_.integer_dot || !takes_int8(m.format, m.rounding)) return;
    plan_.variants.integer_dot = true;
    plan_.quantized_words = std::max(plan_.quantized_words, params::quantized_row_words(cols));
  }

  GpuPlan& plan_;
  const WeightShapes& weights_;
  const Variants& allowed_;
  const PhysicalDevice& device_;
  std::int32_t tops_ = 0;
};

// Sets kept_bytes and partial_bytes of `areas`, the sizes of the scratch memory that attention needs in a run.
void place_attends(const GpuPlan& plan, std::span<const AttendTables> attends, std::int64_t kept_pages, Areas& areas) {
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const AttendShape& shape = plan.attends[a];
    if (!shape.cached) {
      const PageWords words = page_words(KvFormat::f32, kept_shape(shape));
      const auto bytes = [&](std::uint64_t page) { return aligned(bytes_of(kept_pages, static_cast<std::int64_t>(page * 4))); };
      areas.kept_bytes = std::max(areas.kept_bytes, bytes(words.keys) + bytes(words.values));
    }
    if (attends[a].parts == 1) continue;
    for (const TileBlock& block : attends[a].blocks) {
      const std::uint64_t queries = bytes_of(block.rows, std::int64_t{shape.kv_heads} * shape.heads_per_kv);
      areas.partial_bytes = std::max(
          areas.partial_bytes, params::attend_partial_words(queries, attends[a].parts, static_cast<std::uint32_t>(shape.value_dim)) * 4);
    }
  }
}

}  // namespace

Variants offered(const PhysicalDevice& device, Compute compute) {
  if (compute == Compute::float32) return {};
  return {.integer_dot = device.integer_dot_used, .cooperative_matrix = device.cooperative_matrix};
}

GpuPlan make_plan(Program program, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device) {
  GpuPlan plan;
  plan.facts = check_program(program, weights);
  plan.program = std::move(program);
  GpuPlanner planner(plan, weights, allowed, device);
  for (const Op& op : plan.program.ops) std::visit(planner, op);
  return plan;
}

std::uint64_t table_bytes(const GpuPlan& plan, std::int64_t rows) {
  // In the worst case, each row is a segment of its own. It then has 6 words (id, type, position, selected row, cell, kept cell) and, in
  // each of the two segment tables, an entry and a list of one page.
  std::uint64_t words = 6 + 2 * (params::kSegmentWords + 1);
  for (const RopeTable& rope : plan.ropes) words += 2 * rope.inv_freq.size();
  words += plan.temperatures.size();
  words += params::kTileWords * plan.attends.size();
  // Each row is then also a span of its own. It may save a state, which takes 2 words.
  words += params::kSpanWords * plan.spans.size() + (plan.program.states.empty() ? 0 : 2);
  for (const Op& op : plan.program.ops) {
    if (const auto* top = std::get_if<Top>(&op))
      words += params::kTopRowWords + static_cast<std::uint64_t>(top->reported) + mask_words(top->logits.width);
  }
  return 4 * (words * static_cast<std::uint64_t>(rows) + params::kDistanceWords * plan.distances.size());
}

std::uint64_t state_words(const StateShape& shape) {
  if (shape.matrices < 1 || shape.matrices > 65536 || shape.rows < 0 || shape.rows > kMaxStateDim || shape.cols < 1 ||
      shape.cols > 1 << 24) {
    fail(ErrorKind::unsupported_model, "a state of ", shape.matrices, " x ", shape.rows, " x ", shape.cols,
         " numbers; needed: 1 to 65536 matrices of at most ", kMaxStateDim, " rows of 1 to ", 1 << 24);
  }
  return static_cast<std::uint64_t>(shape.matrices) * static_cast<std::uint64_t>(shape.rows) * static_cast<std::uint64_t>(shape.cols);
}

ExpertArea expert_area(const ExpertsStep& step, std::int64_t rows) {
  ExpertArea area;
  const std::int64_t pairs = std::min(rows, step.block_rows) * step.chosen;
  // The list is sized for the smallest tiles, because they need the longest list.
  const std::int64_t tiles = params::list_tiles(pairs, step.experts, kLeastListedTokens);
  area.list_bytes = static_cast<std::uint64_t>(params::list_words(pairs, tiles)) * 4;
  area.hidden_at = aligned(area.list_bytes);
  area.results_at = area.hidden_at + static_cast<std::uint64_t>(pairs) * pair_bytes(step.width);
  area.bytes = area.results_at + static_cast<std::uint64_t>(pairs) * pair_bytes(step.op.out.width);
  return area;
}

ScanArea scan_area(const Scan& op, std::span<const SpanBlock> blocks) {
  ScanArea area;
  for (const SpanBlock& block : blocks) area.bytes = std::max(area.bytes, aligned(static_cast<std::uint64_t>(block.rows) * gate_bytes(op)));
  if (blocks.size() < 2) return area;
  for (std::uint64_t& at : area.carry_at) {
    at = area.bytes;
    area.bytes += carry_bytes(op);
  }
  return area;
}

Areas place(const GpuPlan& plan, const Counts& counts, std::span<const AttendTables> attends, std::span<const std::vector<SpanBlock>> spans,
            std::int64_t kept_pages, std::uint64_t range) {
  Areas areas;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t at = areas.total;
    const auto end = checked_add(areas.total, aligned(bytes));
    if (!end) fail(ErrorKind::out_of_device_memory, "scratch of more bytes than can be addressed");
    areas.total = *end;
    return at;
  };
  for (std::size_t s = 0; s < plan.program.slots.size(); ++s) {
    const SlotShape& slot = plan.program.slots[s];
    const bool used = plan.facts.slot_lives[s].used() || static_cast<std::int32_t>(s) == plan.program.output;
    areas.slots.push_back(take(used ? bytes_of(counts.of(slot.rows), slot_stride(slot.width) * 4) : 0));
  }
  if (plan.variants.integer_dot) {
    const auto rounded = [&](std::int64_t rows) { return plan.variants.cooperative_matrix ? std::min(rows, kFewRows) : rows; };
    std::uint64_t bytes = bytes_of(rounded(std::max({counts.tokens, counts.segments, counts.selected})), plan.quantized_words * 4);
    for (const GpuStep& step : plan.steps) {
      const auto* experts = std::get_if<ExpertsStep>(&step);
      if (experts != nullptr) bytes = std::max(bytes, expert_quantized_bytes(*experts, counts.tokens));
    }
    areas.quantized = take(bytes);
  }
  place_attends(plan, attends, kept_pages, areas);
  if (areas.partial_bytes > range) {
    fail(ErrorKind::out_of_device_memory, "attention needs ", areas.partial_bytes, " bytes for parts of its results, one binding holds ",
         range);
  }
  std::uint64_t found = 0;
  for (const Op& op : plan.program.ops) {
    const auto* attend = std::get_if<Attend>(&op);
    if (attend != nullptr && attend->places != VectorId::none) {
      const View& view = attend->by_query ? attend->by_query : attend->by_key;
      const std::uint64_t bytes = bytes_of(counts.tokens, slot_stride(plan.program.slots[static_cast<std::size_t>(view.slot)].width) * 4);
      if (bytes > range) {
        fail(ErrorKind::out_of_device_memory, "attention by places needs ", bytes, " bytes for ", counts.tokens,
             " rows, one binding holds ", range, ". Give fewer or shorter texts at once");
      }
    }
    const auto* top = std::get_if<Top>(&op);
    if (top != nullptr) found = std::max(found, top_found_bytes(*top, std::min(counts.tokens, top_rows(plan.program, *top, range))));
  }
  std::uint64_t scanned = 0, mixed = 0;
  for (const GpuStep& step : plan.steps) {
    const auto* scan = std::get_if<ScanStep>(&step);
    if (scan != nullptr) scanned = std::max(scanned, scan_area(scan->op, spans[static_cast<std::size_t>(scan->spans)]).bytes);
    const auto* experts = std::get_if<ExpertsStep>(&step);
    if (experts != nullptr) mixed = std::max(mixed, expert_area(*experts, counts.tokens).bytes);
  }
  areas.top = take(found);
  areas.scan = take(scanned);
  areas.experts = take(mixed);
  areas.kept = take(areas.kept_bytes);
  areas.partials = take(areas.partial_bytes);
  return areas;
}

PageWords page_words(KvFormat format, const CacheShape& shape) {
  const auto words = [&](std::int32_t dim) {
    return params::kv_page_words(number(format), static_cast<std::uint32_t>(dim), static_cast<std::uint32_t>(shape.heads));
  };
  return {words(shape.key_dim), words(shape.value_dim)};
}

std::uint32_t kept_ranges(const AttendShape& shape, std::int64_t kept_pages, std::uint64_t range) {
  const std::uint64_t page = page_words(KvFormat::f32, kept_shape(shape)).most_bytes();
  return static_cast<std::uint32_t>(std::max<std::int64_t>(1, ceil_div(kept_pages, static_cast<std::int64_t>(range / page))));
}

}  // namespace pumice::vulkan
