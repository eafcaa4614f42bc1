#include "cpu/lowering.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/checked.h"
#include "cpu/kernels.h"

namespace pumice::cpu {
namespace {

constexpr std::int32_t kMaxWidth = 1 << 24;

bool overlap(const View& a, const View& b) {
  return a && b && a.slot == b.slot && a.col < b.col + b.width && b.col < a.col + a.width;
}

class Lowering {
 public:
  Lowering(const Program& program, const WeightShapes& weights, Compute compute)
      : program_(program), weights_(weights), compute_(compute) {}

  Plan lower() {
    begin();
    for (op_ = 0; op_ < program_.ops.size(); ++op_) std::visit(*this, program_.ops[op_]);
    end();
    return std::move(plan_);
  }

  void operator()(const Embed& op) {
    kind_ = "Embed";
    write(op.out, "out", Rows::tokens);
    const MatrixId tables[] = {op.tokens, op.positions, op.types};
    const char* const names[] = {"tokens", "positions", "types"};
    for (int i = 0; i < 3; ++i) {
      if (i > 0 && tables[i] == MatrixId::none) continue;
      const MatrixShape& table = matrix(tables[i], names[i]);
      check(table.cols == op.out.width, "table '", table.name, "' has rows of ", table.cols, ", `out` takes ", op.out.width);
    }
    if (op.positions != MatrixId::none) {
      plan_.positions_limit = std::min(plan_.positions_limit, matrix(op.positions, "positions").rows);
      plan_.takes_segments = true;
    }
    plan_.takes_ids = true;
    plan_.widest_embedding = std::max<std::int64_t>(plan_.widest_embedding, op.out.width);
    plan_.steps.push_back(EmbedStep{op});
  }

  void operator()(const Norm& op) {
    kind_ = "Norm";
    read(op.in, "in");
    if (op.add) read(op.add, "add", rows_of(op.in));
    apart_or_same(op.in, op.out, "in", "out");
    apart_or_same(op.add, op.out, "add", "out");
    const std::int32_t group = op.group == 0 ? op.in.width : op.group;
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    check(!op.add || op.add.width == op.out.width, "`add` is ", op.add.width, " wide, `out` ", op.out.width);
    check(group > 0 && op.in.width % group == 0, "groups of ", op.group, " do not divide ", op.in.width, " columns");
    if (op.weight != VectorId::none) sized(op.weight, "weight", group);
    if (op.bias != VectorId::none) sized(op.bias, "bias", group);
    check(op.kind == NormKind::layer || op.bias == VectorId::none, "an rms norm has no bias");
    check(std::isfinite(op.eps) && op.eps >= 0, "eps is ", op.eps);
    write(op.out, "out", rows_of(op.in));
    made_by_norm_.push_back({op.out, plan_.steps.size(), op_});
    plan_.steps.push_back(NormStep{op});
  }

  void operator()(const Linear& op) {
    kind_ = "Linear";
    read(op.in, "in");
    if (op.residual) read(op.residual, "residual", rows_of(op.in));
    apart(op.in, op.out, "in", "out");
    apart_or_same(op.residual, op.out, "residual", "out");
    check(!op.parts.empty(), "no weights");
    LinearStep step{op.in, op.out, op.residual, op.activation, {}};
    std::int64_t col = 0;
    bool int8 = false;
    for (const LinearPart& part : op.parts) {
      step.parts.push_back(this->part(part.weight, part.bias, op.in, col));
      int8 |= step.parts.back().int8;
      col += step.parts.back().rows;
    }
    check(col == op.out.width, "weights give ", col, " columns, `out` takes ", op.out.width);
    check(!op.residual || op.residual.width == op.out.width, "`residual` is ", op.residual.width, " wide, `out` ", op.out.width);
    if (int8) step.quantised = quantised(op.in, op.precise ? 2 : 1);
    write(op.out, "out", rows_of(op.in));
    plan_.steps.push_back(std::move(step));
  }

  void operator()(const GatedLinear& op) {
    kind_ = "GatedLinear";
    read(op.in, "in");
    apart(op.in, op.out, "in", "out");
    GatedStep step{op.in, op.out, op.activation, part(op.gate, VectorId::none, op.in, 0), part(op.up, VectorId::none, op.in, 0)};
    check(step.gate.rows == op.out.width && step.up.rows == op.out.width, "gate and up give ", step.gate.rows, " and ", step.up.rows,
          " columns, `out` takes ", op.out.width);
    if (step.gate.int8 || step.up.int8) step.quantised = quantised(op.in, 1);
    write(op.out, "out", rows_of(op.in));
    plan_.gated = true;
    plan_.steps.push_back(std::move(step));
  }

  void operator()(const RopeStore& op) {
    kind_ = "RopeStore";
    const std::int32_t cache = static_cast<std::int32_t>(op.cache);
    check(cache >= 0 && cache < static_cast<std::int32_t>(program_.caches.size()), "cache ", cache, " of ", program_.caches.size());
    const CacheShape& shape = program_.caches[static_cast<std::size_t>(cache)];
    for (const View* view : {&op.q, &op.k, &op.v}) read(*view, "q, k or v", Rows::tokens);
    apart(op.q, op.k, "q", "k");
    apart(op.q, op.v, "q", "v");
    apart(op.k, op.v, "k", "v");
    check(op.head_dim > 0 && op.head_dim == shape.head_dim, "heads of ", op.head_dim, ", the cache keeps heads of ", shape.head_dim);
    check(op.q.width % op.head_dim == 0, "q of ", op.q.width, " columns is not made of heads of ", op.head_dim);
    const std::int64_t kept = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
    check(op.k.width == kept && op.v.width == kept, "k and v are ", op.k.width, " and ", op.v.width, " wide, the cache keeps ",
          shape.kv_heads, " heads of ", shape.head_dim);
    check(static_cast<std::int64_t>(op.rope.inv_freq.size()) * 2 <= op.head_dim, op.rope.inv_freq.size(), " pairs in a head of ",
          op.head_dim);
    write(op.q, "q", Rows::tokens);
    write(op.k, "k", Rows::tokens);
    plan_.takes_segments = true;
    stored_[static_cast<std::size_t>(cache)] = true;
    plan_.steps.push_back(RopeStoreStep{op.q, op.k, op.v, op.cache, op.head_dim, turns(op.rope)});
    looks_beyond_one_row();
  }

  void operator()(const Attend& op) {
    kind_ = "Attend";
    read(op.q, "q", Rows::tokens);
    apart_or_same(op.q, op.out, "q", "out");
    check(op.head_dim > 0 && op.head_dim <= kMaxHeadDim && op.kv_heads > 0 && op.kv_heads <= 65536, op.kv_heads, " kv heads of ", op.head_dim);
    const std::int64_t kept = static_cast<std::int64_t>(op.kv_heads) * op.head_dim;
    check(op.q.width == op.out.width && op.q.width % kept == 0, "q and out are ", op.q.width, " and ", op.out.width,
          " wide, not a multiple of ", op.kv_heads, " kv heads of ", op.head_dim);
    check(std::isfinite(op.scale) && std::isfinite(op.softcap) && op.softcap >= 0 && op.window >= 0, "scale ", op.scale, ", softcap ",
          op.softcap, ", window ", op.window);
    const bool cached = op.cache != CacheId::none;
    if (cached) {
      const std::int32_t cache = static_cast<std::int32_t>(op.cache);
      check(cache >= 0 && cache < static_cast<std::int32_t>(program_.caches.size()), "cache ", cache, " of ", program_.caches.size());
      const CacheShape& shape = program_.caches[static_cast<std::size_t>(cache)];
      check(shape.kv_heads == op.kv_heads && shape.head_dim == op.head_dim, op.kv_heads, " kv heads of ", op.head_dim, ", the cache keeps ",
            shape.kv_heads, " of ", shape.head_dim);
      check(stored_[static_cast<std::size_t>(cache)], "nothing was stored in cache ", cache, " before");
    } else {
      for (const View* view : {&op.k, &op.v}) {
        read(*view, "k or v", Rows::tokens);
        check(view->width == kept, "k or v is ", view->width, " wide, not ", op.kv_heads, " heads of ", op.head_dim);
        apart(*view, op.out, "k or v", "out");
      }
    }
    write(op.out, "out", Rows::tokens);
    plan_.takes_segments = true;
    const AttendShape wanted{static_cast<std::int32_t>(op.q.width / kept), op.kv_heads, op.head_dim, op.window, cached};
    const auto known = std::find(plan_.attends.begin(), plan_.attends.end(), wanted);
    const auto shape = static_cast<std::int32_t>(known - plan_.attends.begin());
    if (known == plan_.attends.end()) plan_.attends.push_back(wanted);
    if (!cached) plan_.steps.push_back(KeepStep{op, shape});
    plan_.steps.push_back(AttendStep{op, shape});
    plan_.steps.push_back(MergeStep{op, shape});
    looks_beyond_one_row();
  }

  void operator()(const Select& op) {
    kind_ = "Select";
    read(op.in, "in", Rows::tokens);
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    write(op.out, "out", Rows::selected);
    plan_.takes_selected = true;
    plan_.steps.push_back(SelectStep{op.in, op.out});
    looks_beyond_one_row();
  }

  void operator()(const Pool& op) {
    kind_ = "Pool";
    read(op.in, "in", Rows::tokens);
    check(op.in.width == op.out.width, "`in` is ", op.in.width, " wide, `out` ", op.out.width);
    write(op.out, "out", Rows::segments);
    plan_.takes_segments = true;
    plan_.steps.push_back(PoolStep{op.in, op.out, op.kind});
    looks_beyond_one_row();
  }

  void operator()(const LogProb& op) {
    kind_ = "LogProb";
    read(op.logits, "logits", Rows::tokens);
    check(op.out.width == 1, "`out` is ", op.out.width, " wide, not 1");
    apart(op.logits, op.out, "logits", "out");
    write(op.out, "out", Rows::tokens);
    plan_.takes_ids = true;
    has_log_prob_ = true;
    plan_.steps.push_back(LogProbStep{op.logits, op.out});
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorKind::unsupported_model, "program '", program_.name, "', operation ", op_, " (", kind_, "): ", str(parts...));
  }
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    if (!holds) refuse(parts...);
  }

  // ---------------------------------------------------------------- begin and end
  void begin() {
    const auto slots = static_cast<std::int32_t>(program_.slots.size());
    kind_ = "slots";
    plan_.name = program_.name;
    plan_.caches = program_.caches;
    plan_.input = program_.input;
    plan_.output = program_.output;
    plan_.used.resize(weights_.matrices.size());
    stored_.resize(program_.caches.size());
    for (const CacheShape& cache : program_.caches) {
      check(cache.kv_heads > 0 && cache.kv_heads <= 65536 && cache.head_dim > 0 && cache.head_dim <= kMaxHeadDim, "a cache of ", cache.kv_heads,
            " heads of ", cache.head_dim);
    }
    for (const SlotShape& slot : program_.slots) {
      check(slot.width > 0 && slot.width <= kMaxWidth, "a slot is ", slot.width, " wide, not 1 to ", kMaxWidth);
      plan_.slots.push_back({slot.rows, slot.width, round_up(slot.width, 16), -1});
      written_.emplace_back(static_cast<std::size_t>(slot.width), false);
    }
    check(program_.input >= -1 && program_.input < slots, "input slot ", program_.input, " of ", slots);
    check(program_.output >= -1 && program_.output < slots, "output slot ", program_.output, " of ", slots);
    slot_lives_.resize(program_.slots.size());
    // The input arrives and tables are made before operation 0.
    if (program_.input >= 0) {
      const View whole{program_.input, 0, plan_.slots[static_cast<std::size_t>(program_.input)].width};
      write(whole, "input", plan_.slots[static_cast<std::size_t>(program_.input)].rows);
      slot_lives_[static_cast<std::size_t>(program_.input)].first = -1;
      plan_.steps.push_back(InputStep{program_.input});
    }
  }

  void end() {
    kind_ = "end";
    if (program_.output >= 0) {
      const auto output = static_cast<std::size_t>(program_.output);
      check(std::find(written_[output].begin(), written_[output].end(), false) == written_[output].end(),
            "the output slot ", program_.output, " is not wholly written");
      plan_.slots[output].stride = plan_.slots[output].width;
    }
    // Tables of cos and sin come first.
    std::vector<Step> tables;
    for (std::size_t t = 0; t < plan_.turns.size(); ++t) tables.push_back(TurnsStep{static_cast<std::int32_t>(t)});
    plan_.steps.insert(plan_.steps.begin(), tables.begin(), tables.end());
    tail_step_ += tables.size();
    if (tail_step_ == tables.size() && program_.input >= 0) ++tail_step_;  // the input is copied once, in front of the tail
    in_blocks_ = has_log_prob_ && last_other_rows_ < tail_op_;
    plan_.tail = in_blocks_ ? tail_step_ : plan_.steps.size();
    place();
  }

  void looks_beyond_one_row() {
    tail_step_ = plan_.steps.size();
    tail_op_ = static_cast<std::int64_t>(op_) + 1;
  }

  // ---------------------------------------------------------------- views
  void view(const View& view, const char* what) const {
    check(view.slot >= 0 && view.slot < static_cast<std::int32_t>(plan_.slots.size()), "`", what, "` names slot ", view.slot, " of ",
          plan_.slots.size());
    const std::int64_t width = plan_.slots[static_cast<std::size_t>(view.slot)].width;
    check(view.col >= 0 && view.width > 0 && static_cast<std::int64_t>(view.col) + view.width <= width, "`", what, "` takes ", view.width,
          " columns from ", view.col, " of slot ", view.slot, ", which has ", width);
  }
  Rows rows_of(const View& view) const { return plan_.slots[static_cast<std::size_t>(view.slot)].rows; }

  void read(const View& v, const char* what) {
    view(v, what);
    const std::vector<bool>& written = written_[static_cast<std::size_t>(v.slot)];
    for (std::int32_t c = v.col; c < v.col + v.width; ++c) {
      check(written[static_cast<std::size_t>(c)], "`", what, "` reads column ", c, " of slot ", v.slot, " before anything wrote it");
    }
    live(v);
  }
  void read(const View& v, const char* what, Rows rows) {
    read(v, what);
    check(rows_of(v) == rows, "`", what, "` has rows of another kind (tokens, segments, selected)");
  }
  void write(const View& v, const char* what, Rows rows) {
    view(v, what);
    check(rows_of(v) == rows, "`", what, "` has rows of another kind (tokens, segments, selected)");
    if (rows != Rows::tokens) last_other_rows_ = static_cast<std::int64_t>(op_);
    std::fill_n(written_[static_cast<std::size_t>(v.slot)].begin() + v.col, v.width, true);
    std::erase_if(quantised_now_, [&](const Quantised& q) { return overlap(q.view, v); });
    std::erase_if(made_by_norm_, [&](const Made& m) { return overlap(m.view, v); });
    live(v);
  }
  void live(const View& v) { slot_lives_[static_cast<std::size_t>(v.slot)].at(static_cast<std::int64_t>(op_)); }
  void apart(const View& a, const View& b, const char* a_name, const char* b_name) const {
    check(!overlap(a, b), "`", a_name, "` and `", b_name, "` overlap");
  }
  void apart_or_same(const View& a, const View& b, const char* a_name, const char* b_name) const {
    if (!(a == b)) apart(a, b, a_name, b_name);
  }

  // ---------------------------------------------------------------- weights
  const MatrixShape& matrix(MatrixId id, const char* what) {
    const auto index = static_cast<std::int64_t>(id);
    check(index >= 0 && index < static_cast<std::int64_t>(weights_.matrices.size()), "`", what, "` names matrix ", index, " of ",
          weights_.matrices.size());
    const MatrixShape& matrix = weights_.matrices[static_cast<std::size_t>(index)];
    check(matrix.present, "matrix '", matrix.name, "' was not loaded on this device");
    check(matrix.rows > 0 && matrix.cols > 0 && matrix.rows <= INT32_MAX && matrix.cols <= INT32_MAX, "matrix '", matrix.name, "' has ",
          matrix.rows, " rows of ", matrix.cols);
    plan_.used[static_cast<std::size_t>(index)] = true;
    return matrix;
  }
  void sized(VectorId id, const char* what, std::int64_t size) const {
    const auto index = static_cast<std::int64_t>(id);
    check(index >= 0 && index < static_cast<std::int64_t>(weights_.vectors.size()), "`", what, "` names vector ", index, " of ",
          weights_.vectors.size());
    const VectorShape& vector = weights_.vectors[static_cast<std::size_t>(index)];
    check(vector.size == size, "'", vector.name, "' has ", vector.size, " values, needed are ", size);
  }
  Part part(MatrixId weight, VectorId bias, const View& in, std::int64_t col) {
    const MatrixShape& shape = matrix(weight, "weight");
    check(shape.cols == in.width, "'", shape.name, "' takes ", shape.cols, " columns, its input has ", in.width);
    check(col + shape.rows <= kMaxWidth, "'", shape.name, "' and the parts before it give ", col + shape.rows, " columns");
    if (bias != VectorId::none) sized(bias, "bias", shape.rows);
    const bool int8 = compute_ == Compute::automatic && info(shape.format).quantised;
    return {weight, bias, shape.rows, shape.cols, static_cast<std::int32_t>(col), shape.format, int8};
  }

  // ---------------------------------------------------------------- what is made once
  std::int32_t quantised(const View& in, int terms) {
    const auto now = static_cast<std::int64_t>(op_);
    for (const Quantised& known : quantised_now_) {
      if (known.view == in && plan_.quantised[static_cast<std::size_t>(known.id)].terms == terms) {
        quantised_lives_[static_cast<std::size_t>(known.id)].at(now);
        return known.id;
      }
    }
    const auto id = static_cast<std::int32_t>(plan_.quantised.size());
    plan_.quantised.push_back({rows_of(in), in.width, -1, terms});
    quantised_lives_.emplace_back();
    quantised_lives_.back().at(now);
    quantised_now_.push_back({in, id});
    for (const Made& made : made_by_norm_) {
      NormStep& norm = std::get<NormStep>(plan_.steps[made.step]);
      if (made.view == in && norm.quantised < 0) {  // its own loop over rows does it while the row is in the first cache
        norm.quantised = id;
        quantised_lives_.back().at(static_cast<std::int64_t>(made.op));
        return id;
      }
    }
    plan_.steps.push_back(QuantizeStep{in, id});
    return id;
  }

  std::int32_t turns(const Rope& rope) {
    if (rope.inv_freq.empty()) return -1;
    check(std::isfinite(rope.magnitude), "the rope's magnitude is ", rope.magnitude);
    for (const float f : rope.inv_freq) check(std::isfinite(f), "a rope frequency is ", f);
    const auto known = std::find(plan_.turns.begin(), plan_.turns.end(), rope);
    const auto id = static_cast<std::int32_t>(known - plan_.turns.begin());
    if (known == plan_.turns.end()) plan_.turns.push_back(rope);
    return id;
  }

  // ---------------------------------------------------------------- areas
  struct Life {
    std::int64_t first = INT64_MAX, last = -1;  // operations
    void at(std::int64_t op) {
      first = std::min(first, op);
      last = std::max(last, op);
    }
  };
  struct Tenant {
    Life life;
    Rows rows;
    std::int64_t row_bytes;
    std::int32_t* area;
  };

  // Gives every slot and quantised input an area; those whose lives do not touch share one, the best fitting first.
  void place() {
    std::vector<Tenant> tenants;
    for (std::size_t s = 0; s < plan_.slots.size(); ++s) {
      SlotPlace& slot = plan_.slots[s];
      if (slot_lives_[s].first == INT64_MAX || static_cast<std::int32_t>(s) == plan_.output) continue;
      tenants.push_back({slot_lives_[s], slot.rows, slot.stride * static_cast<std::int64_t>(sizeof(float)), &slot.area});
    }
    for (std::size_t q = 0; q < plan_.quantised.size(); ++q) {
      QuantisedPlace& place = plan_.quantised[q];
      tenants.push_back({quantised_lives_[q], place.rows, place.terms * quantised_row_bytes(place.cols), &place.area});
    }
    std::stable_sort(tenants.begin(), tenants.end(), [](const Tenant& a, const Tenant& b) { return a.life.first < b.life.first; });
    std::vector<std::int64_t> last_use;  // per area
    for (const Tenant& tenant : tenants) {
      const bool in_blocks = in_blocks_ && tenant.life.first >= tail_op_ && tenant.rows == Rows::tokens;
      std::int32_t best = -1;
      for (std::size_t a = 0; a < plan_.areas.size(); ++a) {
        const Area& area = plan_.areas[a];
        if (last_use[a] >= tenant.life.first || area.rows != tenant.rows || area.in_blocks != in_blocks) continue;
        const auto misfit = [&](std::size_t i) { return std::abs(plan_.areas[i].row_bytes - tenant.row_bytes); };
        if (best < 0 || misfit(a) < misfit(static_cast<std::size_t>(best))) best = static_cast<std::int32_t>(a);
      }
      if (best < 0) {
        best = static_cast<std::int32_t>(plan_.areas.size());
        plan_.areas.push_back({tenant.rows, in_blocks, 0});
        last_use.push_back(-1);
      }
      Area& area = plan_.areas[static_cast<std::size_t>(best)];
      area.row_bytes = std::max(area.row_bytes, tenant.row_bytes);
      last_use[static_cast<std::size_t>(best)] = tenant.life.last;
      *tenant.area = best;
    }
  }

  struct Quantised { View view; std::int32_t id; };
  struct Made { View view; std::size_t step, op; };

  const Program& program_;
  const WeightShapes& weights_;
  const Compute compute_;
  Plan plan_;
  std::size_t op_ = 0;
  const char* kind_ = "";
  std::vector<std::vector<bool>> written_;  // per slot and column
  std::vector<bool> stored_;                // per cache
  std::vector<Quantised> quantised_now_;    // still what their views hold
  std::vector<Made> made_by_norm_;
  std::vector<Life> slot_lives_, quantised_lives_;
  std::size_t tail_step_ = 0;
  std::int64_t tail_op_ = 0;
  std::int64_t last_other_rows_ = -1;  // the last operation on rows that are not tokens
  bool has_log_prob_ = false, in_blocks_ = false;
};

}  // namespace

Plan lower(const Program& program, const WeightShapes& weights, Compute compute) { return Lowering(program, weights, compute).lower(); }

}  // namespace pumice::cpu
