#include "vulkan/lowering.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/checked.h"

namespace pumice::vulkan {
namespace {

using params::uint;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }
uint word(std::int64_t value) { return static_cast<uint>(value); }

std::uint64_t bytes_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint64_t>(mul_or_fail<std::int64_t>(a, b, "scratch of a device"));
}

// ---------------------------------------------------------------- shapes of tiles, as data
struct LinearTile { uint lanes, tokens, outputs; };
constexpr std::int64_t kFewRows = 8;  // up to here a product is bound by reading weights

// Few rows: one subgroup-sized team for some outputs, all rows at once.
LinearTile matvec_tile(std::int64_t rows) {
  const uint tokens = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
  return {64, tokens, tokens == 1 ? 4u : tokens <= 4 ? 4u : 2u};
}
// Many rows: LANES = TOKENS x OUTPUTS / (8 R), within 128 lanes and 16 KiB of shared memory ((TOKENS + OUTPUTS) x 80 + 64 bytes).
LinearTile gemm_tile(std::int64_t rows) { return rows <= 32 ? LinearTile{64, 32, 64} : LinearTile{64, 64, 64}; }

// Many rows on cooperative matrices: the largest tile that the device's lanes and shared memory hold, and that rows fill by half.
LinearTile cooperative_tile(const CooperativeShape& shape, const Limits& limits, std::int64_t rows, bool gated) {
  const LinearTile tiles[] = {{8, 128, 128}, {4, 64, 64}, {2, 32, 64}, {1, 32, 32}};  // subgroups for lanes
  for (const LinearTile& tile : tiles) {
    const uint lanes = tile.lanes * shape.subgroup;
    const uint shared = (tile.tokens + tile.outputs) * 80 + 128 + tile.lanes * (gated ? 8 : 4) * shape.m * shape.n;
    const bool fits = lanes <= std::min<std::uint64_t>(256, limits.invocations) && shared <= limits.shared && rows * 2 > tile.tokens;
    if (fits || tile.lanes == 1) return {lanes, tile.tokens, tile.outputs};
  }
  return {};
}

enum class Form { floats, int8, cooperative };  // of a product's operands

PipelineKey linear_pipeline(const PhysicalDevice& device, Form form, std::int64_t rows, Format format, Format format2, bool gated,
                            bool vectors, LinearTile& tile) {
  const bool few = rows <= kFewRows;
  std::string shader = form == Form::cooperative ? "gemm_coopmat" : few ? "matvec" : "gemm";
  if (form == Form::int8) shader += "_i8";
  tile = form == Form::cooperative ? cooperative_tile(device.cooperative, device.limits, rows, gated)
         : few                     ? matvec_tile(rows)
                                   : gemm_tile(rows);
  PipelineKey key{std::move(shader),
                  {tile.lanes, static_cast<uint>(format), static_cast<uint>(format2), gated, vectors, tile.tokens, tile.outputs}};
  if (form == Form::cooperative) {
    const CooperativeShape& shape = device.cooperative;
    key.constants.insert(key.constants.end(), {shape.m, shape.n, shape.k, shape.subgroup});
    key.subgroup = shape.subgroup;
  }
  return key;
}

// ---------------------------------------------------------------- plan
class Planner {
 public:
  Planner(Plan& plan, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device)
      : plan_(plan), weights_(weights), allowed_(allowed), device_(device) {}

  void operator()(const Embed& op) {
    plan_.positions |= op.positions != MatrixId::none;
    plan_.types |= op.types != MatrixId::none;
  }
  void operator()(const Norm& op) { plan_.widest_norm = std::max(plan_.widest_norm, op.in.width); }
  void operator()(const Linear& op) {
    if (op.precise) return;
    for (const LinearPart& part : op.parts) product(part.weight, op.in.width);
  }
  void operator()(const GatedLinear& op) { product(op.gate, op.in.width), product(op.up, op.in.width); }
  void operator()(const RopeStore& op) {
    plan_.cached = true;
    if (!op.rope.inv_freq.empty()) plan_.rope_of.back() = index_of(plan_.ropes, op.rope);
  }
  void operator()(const Attend& op) {
    const bool cached = op.cache != CacheId::none;
    (cached ? plan_.cached : plan_.kept) = true;
    const std::int32_t heads_per_kv = op.q.width / op.head_dim / op.kv_heads;
    const std::uint64_t range = device_.limits.range;
    const auto stride = [&](const View& v) { return slot_stride(plan_.program.slots[static_cast<std::size_t>(v.slot)].width) * 4; };
    const AttendShape shape{heads_per_kv, op.kv_heads, op.head_dim, cached,
                            std::max<std::int64_t>(1, static_cast<std::int64_t>(range) / std::max(stride(op.q), stride(op.out)))};
    plan_.attend_of.back() = index_of(plan_.attends, shape);
  }
  void operator()(const Select&) {}
  void operator()(const Pool&) {}
  void operator()(const LogProb&) {}
  void operator()(const Top&) {}

 private:
  template <class T>
  static std::int32_t index_of(std::vector<T>& all, const T& item) {
    const auto known = std::find(all.begin(), all.end(), item);
    const auto index = static_cast<std::int32_t>(known - all.begin());
    if (known == all.end()) all.push_back(item);
    return index;
  }
  void product(MatrixId id, std::int32_t cols) {
    plan_.variants.cooperative_matrix = allowed_.cooperative_matrix;
    const MatrixShape& m = weights_.matrices[static_cast<std::size_t>(id)];
    if (!allowed_.integer_dot || !takes_int8(m.format, m.may_round)) return;
    plan_.variants.integer_dot = true;
    plan_.quantised_words = std::max(plan_.quantised_words, params::quantised_row_words(cols));
  }

  Plan& plan_;
  const WeightShapes& weights_;
  const Variants& allowed_;
  const PhysicalDevice& device_;
};

// ---------------------------------------------------------------- commands
struct PageRange {  // pages [first, first + pages) of keys and of values, as one binding each
  const Buffer* buffer = nullptr;
  std::uint64_t keys = 0, values = 0;
  std::int64_t first = 0, pages = 0;
};

class Lowering {
 public:
  // `keys`: only the pipelines are asked for, no buffer is looked at.
  Lowering(const Plan& plan, const GpuWeights& weights, Device& device, const Counts& counts, const Tables& tables, const Areas& areas,
           const RunBuffers& buffers, const GpuCaches::Slabs* caches, std::set<PipelineKey>* keys, KvFormat format)
      : plan_(plan),
        weights_(weights),
        device_(device),
        counts_(counts),
        tables_(tables),
        areas_(areas),
        buffers_(buffers),
        caches_(caches),
        keys_(keys),
        format_(format) {}

  std::vector<Command> commands() {
    take_input();
    for (op_ = 0; op_ < plan_.program.ops.size(); ++op_) std::visit(*this, plan_.program.ops[op_]);
    give_output();
    return std::move(commands_);
  }

  // ------------------------------------------------------------ embedding
  void operator()(const Embed& op) {
    gather(op.out, op.tokens, tables_.ids_at, op.scale, false);
    if (op.positions != MatrixId::none) gather(op.out, op.positions, tables_.positions_at, 1.0f, true);
    if (op.types != MatrixId::none) gather(op.out, op.types, tables_.types_at, 1.0f, true);
  }
  void gather(const View& out, MatrixId table, uint index_at, float scale, bool add) {
    const GpuMatrix& m = weights_[table];
    for (const Block block : blocks(Rows::tokens, {out})) {
      for (const Piece& piece : m.pieces) {
        Dispatch d = dispatch("embed", "gather", {64, static_cast<uint>(m.format), add});
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

  // ------------------------------------------------------------ norm
  void operator()(const Norm& op) {
    const std::int64_t width = op.group > 0 ? op.group : op.in.width, heads = op.in.width / width;
    const uint lanes = params::norm_lanes(word(width), word(static_cast<std::int64_t>(device_.limits().invocations)));
    for (const Block block : blocks(rows_of(op.in), {op.in, op.out, op.add})) {
      Dispatch d = dispatch("norm", "norm",
                            {lanes, static_cast<uint>(op.kind), op.bias != VectorId::none, static_cast<bool>(op.add),
                             params::norm_batch(word(width), lanes)});
      d.bind(rows(op.in, block, false));
      d.bind(rows(op.out, block, true));
      d.bind(op.add ? rows(op.add, block, false) : Binding{});
      d.bind(op.weight != VectorId::none ? bind(weights_[op.weight]) : Binding{buffers_.ones, 0, static_cast<std::uint64_t>(width) * 4});
      d.bind(op.bias != VectorId::none ? bind(weights_[op.bias]) : Binding{});
      d.set_push(params::NormParams{.heads = word(heads), .width = word(width), .in_at = word(op.in.col), .in_stride = stride(op.in),
                                    .out_at = word(op.out.col), .out_stride = stride(op.out), .add_at = word(op.add ? op.add.col : 0),
                                    .add_stride = op.add ? stride(op.add) : 0, .eps = op.eps});
      const double values = static_cast<double>(block.count) * op.in.width;
      push(d, block.count * heads, values * 8, values * 8);
    }
  }

  // ------------------------------------------------------------ products
  void operator()(const Linear& op) {
    std::int64_t col = op.out.col;
    bool quantised = false;
    for (const LinearPart& part : op.parts) {
      const GpuMatrix& m = weights_[part.weight];
      const Form form = form_of(op.in, takes_int8(m.format, m.may_round), op.precise);
      if (form == Form::int8 && !quantised) quantise(op.in), quantised = true;
      for (const Block block : blocks(rows_of(op.in), {op.in, op.out, op.residual}, form == Form::int8)) {
        for (const Piece& piece : m.pieces) {
          Product p{.in = op.in, .out = {op.out.slot, static_cast<std::int32_t>(col + piece.first), static_cast<std::int32_t>(piece.rows)},
                    .residual = op.residual, .activation = op.activation, .bias = part.bias, .bias_at = piece.first, .form = form};
          if (op.residual) p.residual.col += static_cast<std::int32_t>(col - op.out.col + piece.first);
          product(p, block, {&m, &piece, 0, piece.rows}, {});
        }
      }
      col += m.rows;
    }
  }

  // Rows of gate and up meet where both lie in one piece.
  void operator()(const GatedLinear& op) {
    const GpuMatrix &gate = weights_[op.gate], &up = weights_[op.up];
    const Form form = form_of(op.in, takes_int8(gate.format, gate.may_round) && takes_int8(up.format, up.may_round), false);
    if (form == Form::int8) quantise(op.in);
    for (const Block block : blocks(rows_of(op.in), {op.in, op.out}, form == Form::int8)) {
      for (const Piece& g : gate.pieces) {
        for (const Piece& u : up.pieces) {
          const std::int64_t first = std::max(g.first, u.first), end = std::min(g.first + g.rows, u.first + u.rows);
          if (first >= end) continue;
          const Product p{.in = op.in,
                          .out = {op.out.slot, static_cast<std::int32_t>(op.out.col + first), static_cast<std::int32_t>(end - first)},
                          .activation = op.activation,
                          .form = form};
          product(p, block, {&gate, &g, first - g.first, end - first}, {&up, &u, first - u.first, end - first});
        }
      }
    }
  }

  struct Product {
    View in, out, residual;
    Activation activation = Activation::none;
    VectorId bias = VectorId::none;
    std::int64_t bias_at = 0;
    Form form = Form::floats;
  };
  struct Block { std::int64_t first, count; };
  struct Strip {  // rows of a piece of a matrix
    const GpuMatrix* matrix = nullptr;
    const Piece* piece = nullptr;
    std::int64_t first = 0, rows = 0;
  };

  void product(const Product& p, const Block& block, const Strip& w, const Strip& w2) {
    const bool gated = w2.matrix != nullptr, bias = p.bias != VectorId::none, residual = static_cast<bool>(p.residual),
               int8 = p.form == Form::int8;
    const Format format = w.matrix->format, format2 = gated ? w2.matrix->format : format;
    LinearTile tile{};
    Dispatch d = dispatch(gated ? "gated linear" : "linear", linear_pipeline(device_.physical(), p.form, block.count, format, format2,
                                                                             gated, int8 || p.in.col % 4 == 0, tile));
    d.bind(bind(*w.piece));
    d.bind(int8 ? quantised_rows(p.in, block, false) : rows(p.in, block, false));
    d.bind(rows(p.out, block, true));
    d.bind(bias ? bind(weights_[p.bias]) : Binding{});
    d.bind(residual ? rows(p.residual, block, false) : Binding{});
    d.bind(gated ? bind(*w2.piece) : Binding{});
    const std::int64_t cols = w.matrix->cols;
    d.set_push(params::LinearParams{.tokens = word(block.count),
                                    .outputs = word(w.rows),
                                    .cols = word(cols),
                                    .weights_at = word(w.first * w.matrix->row_words),
                                    .weights2_at = gated ? word(w2.first * w2.matrix->row_words) : 0,
                                    .in_at = int8 ? 0 : word(p.in.col),
                                    .in_stride = int8 ? word(params::quantised_row_words(cols)) : stride(p.in),
                                    .out_at = word(p.out.col),
                                    .out_stride = stride(p.out),
                                    .bias_at = word(p.bias_at),
                                    .residual_at = residual ? word(p.residual.col) : 0,
                                    .residual_stride = residual ? stride(p.residual) : 0,
                                    .activation = static_cast<uint>(p.activation),
                                    .has_bias = bias,
                                    .has_residual = residual});
    const double rows = static_cast<double>(w.rows) * (gated ? 2 : 1), tokens = static_cast<double>(block.count);
    const std::int64_t outputs = gated ? tile.outputs / 2 : tile.outputs;
    const std::int64_t weight_words = w.rows * w.matrix->row_words + (gated ? w2.rows * w2.matrix->row_words : 0);
    push(d, ceil_div(block.count, tile.tokens) * ceil_div(w.rows, outputs), 2 * rows * tokens * static_cast<double>(cols),
         static_cast<double>(weight_words) * 4 + tokens * (static_cast<double>(cols) + rows) * 4);
  }

  Form form_of(const View& in, bool int8, bool precise) const {
    if (precise) return Form::floats;
    if (plan_.variants.cooperative_matrix && counts_.of(rows_of(in)) > kFewRows) return Form::cooperative;
    return plan_.variants.integer_dot && int8 ? Form::int8 : Form::floats;
  }

  void quantise(const View& in) {
    const std::int64_t cols = in.width;
    constexpr uint kLanes = 64;
    for (const Block block : blocks(rows_of(in), {in}, true)) {
      Dispatch d = dispatch("quantise", "quantize", {kLanes, in.col % 4 == 0});
      d.bind(rows(in, block, false));
      d.bind(quantised_rows(in, block, true));
      d.set_push(params::QuantizeParams{.tokens = word(block.count),
                                        .cols = word(cols),
                                        .in_at = word(in.col),
                                        .in_stride = stride(in),
                                        .out_at = 0,
                                        .out_stride = word(params::quantised_row_words(cols))});
      const double values = static_cast<double>(block.count) * static_cast<double>(cols);
      push(d, ceil_div(block.count * cols / 4, kLanes), values * 4, values * 5);
    }
  }

  // ------------------------------------------------------------ keys and values
  void operator()(const RopeStore& op) {
    const std::int32_t rope = plan_.rope_of[op_];
    store(op.q, op.k, op.v, op.head_dim, rope < 0 ? nullptr : &op.rope, rope < 0 ? 0 : tables_.turns_at[static_cast<std::size_t>(rope)],
          tables_.cells_at, cache_ranges(op.cache), kv_page(format_, op.head_dim, op.k.width / op.head_dim), format_);
  }

  void store(const View& q, const View& k, const View& v, std::int32_t head_dim, const Rope* rope, uint turns_at, uint cells_at,
             const std::vector<PageRange>& ranges, std::uint64_t page_words, KvFormat format) {
    constexpr uint kLanes = 64;
    const uint span = params::store_span(word(head_dim), kLanes);
    const std::int64_t kv_heads = k.width / head_dim, pairs = rope != nullptr ? static_cast<std::int64_t>(rope->inv_freq.size()) : 0;
    for (const Block block : blocks(Rows::tokens, {q, k, v})) {
      for (std::size_t r = 0; r < ranges.size(); ++r) {
        const std::int64_t q_heads = r == 0 && pairs > 0 ? q.width / head_dim : 0;
        Dispatch d = dispatch("rope and store", "store", {kLanes, static_cast<uint>(format), word(head_dim), span});
        d.bind(rows(q, block, true));
        d.bind(rows(k, block, true));
        d.bind(rows(v, block, false));
        bind_pages(d, ranges[r], page_words, true);
        d.bind(meta());
        d.set_push(params::StoreParams{.rows = word(block.count),
                                       .q_heads = word(q_heads),
                                       .kv_heads = word(kv_heads),
                                       .pairs = r == 0 ? word(pairs) : 0,
                                       .interleaved = rope != nullptr && rope->interleaved,
                                       .q_at = word(q.col),
                                       .q_stride = stride(q),
                                       .k_at = word(k.col),
                                       .k_stride = stride(k),
                                       .v_at = word(v.col),
                                       .v_stride = stride(v),
                                       .cells_at = cells_at + word(block.first),
                                       .turns_at = turns_at + word(block.first * 2 * pairs),
                                       .page_first = word(ranges[r].first),
                                       .page_count = word(ranges[r].pages),
                                       .page_words = static_cast<uint>(page_words)});
        const double values = static_cast<double>(block.count) * (q_heads + 2 * kv_heads) * head_dim;
        push(d, ceil_div(block.count * (q_heads + 2 * kv_heads), kLanes / span), values * 8, values * 8);
      }
    }
  }

  void operator()(const Attend& op) {
    const auto a = static_cast<std::size_t>(plan_.attend_of[op_]);
    const AttendShape& shape = plan_.attends[a];
    const AttendTables& tables = tables_.attends[a];
    const KvFormat format = shape.cached ? format_ : KvFormat::f32;
    const std::uint64_t page_words = kv_page(format, shape.head_dim, shape.kv_heads);
    const std::vector<PageRange> ranges = shape.cached ? cache_ranges(op.cache) : kept_ranges(page_words);
    if (!shape.cached) store(op.k, op.k, op.v, op.head_dim, nullptr, 0, tables_.kept_cells_at, ranges, page_words, format);
    const std::int64_t heads = std::int64_t{shape.kv_heads} * shape.heads_per_kv;
    const uint window = word(op.window), ahead = shape.cached ? 0 : op.window > 0 ? window : uint{params::kNoWindow};
    const uint behind = op.window == 0 ? uint{params::kNoWindow} : shape.cached ? window - 1 : window;
    for (const TileBlock& tiles : tables.blocks) {
      const Block block{tiles.first_row, tiles.rows};
      const std::uint64_t queries = bytes_of(tiles.rows, heads);
      const std::uint64_t states_at = queries * tables.parts * params::padded_dim(word(shape.head_dim));
      const Binding partials{buffers_.scratch, areas_.partials,
                             params::attend_partial_words(queries, tables.parts, word(shape.head_dim)) * 4, true};
      for (std::size_t r = 0; r < ranges.size(); ++r) {
        Dispatch d =
            dispatch("attend", "attend",
                     {params::kAttendLanes, static_cast<uint>(format), word(shape.head_dim), tables.tile.queries, tables.tile.keys});
        d.bind(rows(op.q, block, false));
        bind_pages(d, ranges[r], page_words, false);
        d.bind(meta());
        const Binding result = tables.parts == 1 ? rows(op.out, block, true) : partials;
        d.bind(result);  // one of the two is not used, but the shader might write it
        d.bind(result);
        d.set_push(params::AttendParams{.tiles = tiles.tiles,
                                        .kv_heads = word(shape.kv_heads),
                                        .heads_per_kv = word(shape.heads_per_kv),
                                        .tile_heads = tables.tile.heads,
                                        .head_blocks = tables.tile.head_blocks,
                                        .splits = tables.splits,
                                        .part_first = word(static_cast<std::int64_t>(r)) * tables.splits,
                                        .parts = tables.parts,
                                        .states_at = static_cast<uint>(states_at),
                                        .tiles_at = tiles.tiles_at,
                                        .segments_at = shape.cached ? tables_.segments_at : tables_.kept_segments_at,
                                        .first_row = word(tiles.first_row),
                                        .page_first = word(ranges[r].first),
                                        .page_count = word(ranges[r].pages),
                                        .page_words = static_cast<uint>(page_words),
                                        .behind = behind,
                                        .ahead = ahead,
                                        .q_at = word(op.q.col),
                                        .q_stride = stride(op.q),
                                        .out_at = word(op.out.col),
                                        .out_stride = stride(op.out),
                                        .scale = op.scale,
                                        .softcap = op.softcap});
        const double pairs = static_cast<double>(queries) * static_cast<double>(most_keys(shape));
        // Each tile of queries reads its keys and values once.
        const double values = 2 * pairs / (tables.tile.rows * tables.tile.heads) * shape.head_dim;
        push(d, std::int64_t{tiles.tiles} * shape.kv_heads * tables.tile.head_blocks * tables.splits, 4 * pairs * shape.head_dim,
             values * (format == KvFormat::f32 ? 4 : format == KvFormat::f16 ? 2 : 1));
      }
      if (tables.parts == 1) continue;
      Dispatch d = dispatch("merge", "merge", {64});
      d.bind(Binding{partials.buffer, partials.offset, partials.bytes});
      d.bind(rows(op.out, block, true));
      d.set_push(params::MergeParams{.heads = word(heads),
                                     .head_dim = word(shape.head_dim),
                                     .parts = tables.parts,
                                     .states_at = static_cast<uint>(states_at),
                                     .out_at = word(op.out.col),
                                     .out_stride = stride(op.out)});
      push(d, static_cast<std::int64_t>(queries), static_cast<double>(queries) * tables.parts * shape.head_dim * 2,
           static_cast<double>(partials.bytes));
    }
  }

  // ------------------------------------------------------------ ends
  void operator()(const Select& op) {
    const std::int64_t source_rows = rows_per_binding({op.in});
    const std::int64_t per_row = ceil_div(op.in.width, std::int64_t{64} * params::kSelectPerLane);
    for (const Block block : blocks(Rows::selected, {op.out})) {
      for (std::int64_t first = 0; first < counts_.tokens; first += source_rows) {
        const Block source{first, std::min(source_rows, counts_.tokens - first)};
        Dispatch d = dispatch("select", "select", {64});
        d.bind(rows(op.in, source, false));
        d.bind(rows(op.out, block, true));
        d.bind(meta());
        d.set_push(params::SelectParams{.blocks = word(per_row),
                                        .width = word(op.in.width),
                                        .in_at = word(op.in.col),
                                        .in_stride = stride(op.in),
                                        .out_at = word(op.out.col),
                                        .out_stride = stride(op.out),
                                        .rows_at = tables_.selected_at + word(block.first),
                                        .chunk_first = word(source.first),
                                        .chunk_rows = word(source.count)});
        const double values = static_cast<double>(block.count) * op.in.width;
        push(d, block.count * per_row, values, values * 8);
      }
    }
  }

  void operator()(const Pool& op) {
    const std::int64_t per_segment = ceil_div(op.in.width, params::kPoolColumns), chunk_rows = rows_per_binding({op.in});
    for (const Block block : blocks(Rows::segments, {op.out})) {
      for (std::int64_t first = 0; first < counts_.tokens; first += chunk_rows) {
        const Block chunk{first, std::min(chunk_rows, counts_.tokens - first)};
        Dispatch d = dispatch("pool", "pool", {64, static_cast<uint>(op.kind)});
        d.bind(rows(op.in, chunk, false));
        d.bind(rows(op.out, block, true));
        d.bind(meta());
        d.set_push(params::PoolParams{.blocks = word(per_segment),
                                      .width = word(op.in.width),
                                      .in_at = word(op.in.col),
                                      .in_stride = stride(op.in),
                                      .out_at = word(op.out.col),
                                      .out_stride = stride(op.out),
                                      .segments_at = tables_.segments_at + params::kSegmentWords * word(block.first),
                                      .chunk_first = word(chunk.first),
                                      .chunk_rows = word(chunk.count)});
        const double values = static_cast<double>(chunk.count) * op.in.width;
        push(d, block.count * per_segment, values, values * 4);
      }
    }
  }

  void operator()(const LogProb& op) {
    for (const Block block : blocks(Rows::tokens, {op.logits, op.out})) {
      Dispatch d =
          dispatch("log_prob", "log_prob", {word(std::min<std::int64_t>(128, static_cast<std::int64_t>(device_.limits().invocations)))});
      d.bind(rows(op.logits, block, false));
      d.bind(rows(op.out, block, true));
      d.bind(meta());
      d.set_push(params::LogProbParams{.width = word(op.logits.width),
                                       .in_at = word(op.logits.col),
                                       .in_stride = stride(op.logits),
                                       .out_at = word(op.out.col),
                                       .out_stride = stride(op.out),
                                       .ids_at = tables_.ids_at + word(block.first)});
      const double values = static_cast<double>(block.count) * op.logits.width;
      push(d, block.count, values * 8, values * 4);
    }
  }

  // Blocks of the vocabulary, then what they found.
  void operator()(const Top& op) {
    static_assert(params::kTopHead == kTopHead);
    const std::size_t top = top_++;
    const uint lanes = word(std::min<std::int64_t>(128, static_cast<std::int64_t>(device_.limits().invocations)));
    const std::int64_t per_row = top_blocks(op), most = top_rows(plan_.program, op, device_.limits().range);
    for (std::int64_t first = 0; first < counts_.tokens; first += most) {
      const Block block{first, std::min(most, counts_.tokens - first)};
      const std::uint64_t found = top_found_bytes(op, block.count);
      for (const uint stage : {0u, 1u}) {
        Dispatch d = dispatch("top", "top", {lanes, stage, word(op.k)});
        d.bind(rows(op.logits, block, false));
        d.bind(meta());
        d.bind({buffers_.scratch, areas_.top, found, stage == 0});
        d.bind(rows(op.out, block, true));
        d.set_push(params::TopParams{.blocks = word(per_row), .width = word(op.logits.width), .logits_at = word(op.logits.col),
                                     .logits_stride = stride(op.logits),
                                     .rows_at = tables_.tops_at[top] + params::kTopRowWords * word(block.first), .found_at = 0});
        const double values = static_cast<double>(block.count) * (stage == 0 ? op.logits.width : static_cast<double>(per_row) * op.k);
        push(d, block.count * (stage == 0 ? per_row : 1), values * 64, values * 8);
      }
    }
  }

 private:
  // ------------------------------------------------------------ views and buffers
  Rows rows_of(const View& v) const { return plan_.program.slots[static_cast<std::size_t>(v.slot)].rows; }
  uint stride(const View& v) const { return word(slot_stride(plan_.program.slots[static_cast<std::size_t>(v.slot)].width)); }

  Binding rows(const View& v, const Block& block, bool written) const {
    const std::uint64_t row = std::uint64_t{stride(v)} * 4;
    const std::uint64_t base = keys_ != nullptr ? 0 : areas_.slots[static_cast<std::size_t>(v.slot)];
    return {buffers_.scratch,
            base + static_cast<std::uint64_t>(block.first) * row,
            static_cast<std::uint64_t>(block.count) * row,
            written,
            v.slot,
            v.col,
            v.width};
  }
  Binding quantised_rows(const View& in, const Block& block, bool written) const {
    const std::uint64_t row = static_cast<std::uint64_t>(params::quantised_row_words(in.width)) * 4;
    return {buffers_.scratch, areas_.quantised + aligned(static_cast<std::uint64_t>(block.first) * row),
            static_cast<std::uint64_t>(block.count) * row, written};
  }
  Binding meta() const {
    return {buffers_.meta, 0, buffers_.meta != nullptr ? std::min(buffers_.meta->bytes(), device_.limits().range) : 0};
  }
  static Binding bind(const Piece& piece) { return {piece.buffer.get(), piece.offset, piece.bytes}; }
  static Binding bind(const GpuVector& vector) { return {vector.buffer.get(), vector.offset, vector.bytes}; }

  // Rows that one binding of each of these views holds.
  std::int64_t rows_per_binding(std::initializer_list<View> views) const {
    auto most = static_cast<std::int64_t>(INT32_MAX);
    for (const View& v : views) {
      if (v) most = std::min(most, static_cast<std::int64_t>(device_.limits().range / (std::uint64_t{stride(v)} * 4)));
    }
    return std::max<std::int64_t>(1, most);
  }
  std::vector<Block> blocks(Rows kind, std::initializer_list<View> views, bool int8 = false) const {
    std::int64_t most = rows_per_binding(views);
    if (int8) most = std::max<std::int64_t>(64, most / 64 * 64);  // whole blocks of quantised rows begin at multiples of 256 bytes
    std::vector<Block> result;
    const std::int64_t count = counts_.of(kind);
    for (std::int64_t first = 0; first < count; first += most) result.push_back({first, std::min(most, count - first)});
    return result;
  }

  // ------------------------------------------------------------ pages
  static std::uint64_t kv_page(KvFormat format, std::int64_t head_dim, std::int64_t kv_heads) {
    return params::kv_page_words(static_cast<std::uint32_t>(format), word(head_dim), word(kv_heads));
  }
  std::vector<PageRange> cache_ranges(CacheId id) const {
    if (keys_ != nullptr) return {PageRange{}};
    std::vector<PageRange> ranges;
    const auto c = static_cast<std::size_t>(id);
    for (const GpuCaches::Slab& slab : caches_->all)
      ranges.push_back({slab.buffer.get(), slab.keys[c], slab.values[c], slab.first, slab.pages});
    return ranges;
  }
  std::vector<PageRange> kept_ranges(std::uint64_t page_words) const {
    if (keys_ != nullptr) return {PageRange{}};
    std::vector<PageRange> ranges;
    const auto most = static_cast<std::int64_t>(device_.limits().range / (page_words * 4));
    const std::uint64_t values = areas_.kept + aligned(static_cast<std::uint64_t>(tables_.kept_pages) * page_words * 4);
    for (std::int64_t first = 0; first < tables_.kept_pages; first += most) {
      const std::uint64_t at = static_cast<std::uint64_t>(first) * page_words * 4;
      ranges.push_back({buffers_.scratch, areas_.kept + at, values + at, first, std::min(most, tables_.kept_pages - first)});
    }
    return ranges;
  }
  static void bind_pages(Dispatch& d, const PageRange& range, std::uint64_t page_words, bool written) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(range.pages) * page_words * 4;
    d.bind({range.buffer, range.keys, bytes, written});
    d.bind({range.buffer, range.values, bytes, written});
  }
  std::int64_t most_keys(const AttendShape& shape) const {
    if (!shape.cached) return counts_.segments > 0 ? ceil_div(counts_.tokens, counts_.segments) : 0;
    return caches_ != nullptr ? std::min<std::int64_t>(std::int64_t{caches_->pages} * kPageTokens, 4096) : 0;
  }

  // ------------------------------------------------------------ dispatches
  Dispatch dispatch(const char* what, const std::string& shader, std::vector<uint> constants) {
    return dispatch(what, PipelineKey{shader, std::move(constants)});
  }
  Dispatch dispatch(const char* what, PipelineKey key) {
    Dispatch d;
    d.what = what;
    if (keys_ != nullptr) {
      keys_->insert(std::move(key));
    } else {
      d.pipeline = &device_.pipelines().get(key);
    }
    return d;
  }
  void push(Dispatch& d, std::int64_t groups, double flops, double bytes) {
    if (keys_ != nullptr || groups <= 0) return;
    d.groups = static_cast<std::uint64_t>(groups);
    d.flops = flops;
    d.bytes = bytes;
    commands_.emplace_back(d);
  }

  // The host's buffers have the slots' strides: one region each.
  void copy_rows(std::int32_t slot, bool to_slot, const Buffer* host) {
    if (slot < 0 || keys_ != nullptr) return;
    const SlotShape& shape = plan_.program.slots[static_cast<std::size_t>(slot)];
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(counts_.of(shape.rows)) * static_cast<std::uint64_t>(slot_stride(shape.width)) * 4;
    if (bytes == 0) return;
    const std::uint64_t base = areas_.slots[static_cast<std::size_t>(slot)];
    commands_.emplace_back(Copy{to_slot ? host : buffers_.scratch, to_slot ? buffers_.scratch : host,
                                {{.srcOffset = to_slot ? 0 : base, .dstOffset = to_slot ? base : 0, .size = bytes}}});
  }
  void take_input() { copy_rows(plan_.program.input, true, buffers_.in); }
  void give_output() { copy_rows(plan_.program.output, false, buffers_.out); }

  const Plan& plan_;
  const GpuWeights& weights_;
  Device& device_;
  const Counts& counts_;
  const Tables& tables_;
  const Areas& areas_;
  const RunBuffers& buffers_;
  const GpuCaches::Slabs* caches_;
  std::set<PipelineKey>* const keys_;
  const KvFormat format_;
  std::vector<Command> commands_;
  std::size_t op_ = 0, top_ = 0;
};

}  // namespace

Variants offered(const PhysicalDevice& device, Compute compute) {
  if (compute == Compute::float32) return {};
  return {.integer_dot = device.integer_dot_used, .cooperative_matrix = device.cooperative_matrix};
}

Plan make_plan(Program program, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device) {
  Plan plan;
  plan.facts = check_program(program, weights);
  plan.program = std::move(program);
  Planner planner(plan, weights, allowed, device);
  for (const Op& op : plan.program.ops) {
    plan.rope_of.push_back(-1);
    plan.attend_of.push_back(-1);
    std::visit(planner, op);
  }
  return plan;
}

std::uint64_t table_bytes(const Plan& plan, std::int64_t rows) {
  std::uint64_t words = 6 + 2 * (params::kSegmentWords + 1);  // ids, types, positions, selected, cells and kept cells; segments and pages
  for (const Rope& rope : plan.ropes) words += 2 * rope.inv_freq.size();
  words += 4 * plan.attends.size();  // tiles
  for (const Op& op : plan.program.ops) words += std::holds_alternative<Top>(op) ? params::kTopRowWords : 0;
  return 4 * words * static_cast<std::uint64_t>(rows);
}

Areas place(const Plan& plan, const Counts& counts, std::span<const AttendTables> attends, std::int64_t kept_pages, std::uint64_t range) {
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
  if (plan.quantised_words > 0) {
    const std::int64_t rows = std::max({counts.tokens, counts.segments, counts.selected});
    areas.quantised = take(bytes_of(plan.variants.cooperative_matrix ? std::min(rows, kFewRows) : rows, plan.quantised_words * 4));
  }
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const AttendShape& shape = plan.attends[a];
    if (!shape.cached) {
      const std::uint64_t page = params::kv_page_words(params::kKvF32, word(shape.head_dim), word(shape.kv_heads)) * 4;
      areas.kept_bytes = std::max(areas.kept_bytes, 2 * aligned(bytes_of(kept_pages, static_cast<std::int64_t>(page))));
    }
    if (attends[a].parts == 1) continue;
    for (const TileBlock& block : attends[a].blocks) {
      const std::uint64_t queries = bytes_of(block.rows, std::int64_t{shape.kv_heads} * shape.heads_per_kv);
      areas.partial_bytes =
          std::max(areas.partial_bytes, params::attend_partial_words(queries, attends[a].parts, word(shape.head_dim)) * 4);
    }
  }
  if (areas.partial_bytes > range) {
    fail(ErrorKind::out_of_device_memory, "attention needs ", areas.partial_bytes, " bytes for parts of its results, one binding holds ",
         range);
  }
  std::uint64_t found = 0;
  for (const Op& op : plan.program.ops) {
    const auto* top = std::get_if<Top>(&op);
    if (top != nullptr) found = std::max(found, top_found_bytes(*top, std::min(counts.tokens, top_rows(plan.program, *top, range))));
  }
  areas.top = take(found);
  areas.kept = take(areas.kept_bytes);
  areas.partials = take(areas.partial_bytes);
  return areas;
}

std::uint32_t kept_ranges(const AttendShape& shape, std::int64_t kept_pages, std::uint64_t range) {
  const std::uint64_t page = params::kv_page_words(params::kKvF32, word(shape.head_dim), word(shape.kv_heads)) * 4;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(1, ceil_div(kept_pages, static_cast<std::int64_t>(range / page))));
}

std::vector<Command> lower(const Plan& plan, const GpuWeights& weights, Device& device, const Counts& counts, const Tables& tables,
                           const Areas& areas, const RunBuffers& buffers, const GpuCaches::Slabs* caches, KvFormat format) {
  return Lowering(plan, weights, device, counts, tables, areas, buffers, caches, nullptr, format).commands();
}

std::vector<PipelineKey> pipelines_of(const Plan& plan, const GpuWeights& weights, Device& device, KvFormat format) {
  std::set<PipelineKey> keys;
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{64}}) {
    const Segment text{0, static_cast<std::int32_t>(rows), 0, {}};
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows)), pages(2);
    const Segment with_pages{0, text.rows, 0, pages};
    const Batch batch{.rows = text.rows, .ids = zeros, .types = zeros, .segments = {&with_pages, 1}, .selected = std::span(zeros).first(1)};
    Tables tables;
    tables.build({plan.program, plan.facts, plan.ropes, plan.attends, plan.positions, plan.types, plan.cached, plan.kept}, batch);
    const Counts counts{rows, 1, 1};
    const Areas areas;
    const RunBuffers buffers;
    Lowering(plan, weights, device, counts, tables, areas, buffers, nullptr, &keys, format).commands();
  }
  return {keys.begin(), keys.end()};
}

}  // namespace pumice::vulkan
