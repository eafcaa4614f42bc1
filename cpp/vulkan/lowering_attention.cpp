// Lowers the rotation of queries and keys, the storing of keys and values in pages, and attention over these pages.
#include "vulkan/lowering_steps.h"

#include <algorithm>

#include "core/checked.h"

namespace pumice::vulkan {
namespace {

// Returns one view that covers the columns of op.by_query and of op.by_key. One of the two may be empty.
View by_place(const Attend& op) {
  if (!op.by_query) return op.by_key;
  if (!op.by_key) return op.by_query;
  const std::int32_t first = std::min(op.by_query.col, op.by_key.col);
  return {op.by_query.slot, first, std::max(op.by_query.col, op.by_key.col) + op.by_query.width - first};
}

Pages pages_of(const AttendShape& shape) { return shape.cached ? Pages::cache : Pages::kept; }

}  // namespace

// ---------------------------------------------------------------- keys and values
std::vector<GpuLowering::PageRange> GpuLowering::page_ranges(Pages pages, CacheId cache, const PageWords& words) const {
  std::vector<PageRange> ranges;
  if (pages == Pages::none) {
    ranges.emplace_back();
  } else if (pages == Pages::cache) {
    for (const Slabs::Slab& slab : run_.pages.slabs) {
      const Slabs::Plane &keys = slab.planes[keys_plane(cache)], &values = slab.planes[values_plane(cache)];
      ranges.push_back({{keys.buffer.get(), keys.offset}, {values.buffer.get(), values.offset}, slab.first, slab.units});
    }
  } else {
    const std::int64_t kept = run_.tables.kept_pages, most = static_cast<std::int64_t>(run_.device.limits.range / words.most_bytes());
    const std::uint64_t keys = run_.areas.kept, values = keys + aligned(static_cast<std::uint64_t>(kept) * words.keys * 4);
    for (std::int64_t first = 0; first < kept; first += most) {
      const std::uint64_t at = static_cast<std::uint64_t>(first) * 4;
      ranges.push_back({{run_.buffers.scratch, keys + at * words.keys},
                        {run_.buffers.scratch, values + at * words.values},
                        first,
                        std::min(most, kept - first)});
    }
  }
  return ranges;
}

void GpuLowering::operator()(const RopeStore& op) {
  const KvFormat format = format_of(op.pages);
  const PageWords words = op.pages == Pages::none ? PageWords{} : page_words(format, {op.k.width / op.key_dim, op.key_dim, op.value_dim});
  const std::vector<PageRange> ranges = page_ranges(op.pages, op.cache, words);
  for (const Block block : blocks(Rows::tokens, {op.q, op.k, op.v})) {
    for (const PageRange& range : ranges) rope_store(op, block, range, words, &range == ranges.data());
  }
}

// Appends the dispatch of a RopeStore for one range of pages. `first` is true for the first range, whose dispatch also rotates q and k.
void GpuLowering::rope_store(const RopeStore& op, const Block& block, const PageRange& range, const PageWords& words, bool first) {
  constexpr uint kLanes = 64;
  const uint span = params::store_span(word(std::max(op.key_dim, op.value_dim)), kLanes);
  const RopeTable* table = op.table >= 0 ? &run_.plan.ropes[static_cast<std::size_t>(op.table)] : nullptr;
  const std::int64_t pairs = table != nullptr ? static_cast<std::int64_t>(table->inv_freq.size()) : 0;
  const std::int64_t q_heads = first ? op.q.width / op.key_dim : 0, kv_heads = op.k.width / op.key_dim;
  KeyedDispatch d = dispatch(op.pages == Pages::none ? "rope" : "rope and store", "store",
                             {kLanes, number(format_of(op.pages)), word(op.key_dim), word(op.value_dim), span});
  d.bind(op.q ? rows(op.q, block, true) : rows(op.k, block, true));
  d.bind(rows(op.k, block, true));
  d.bind(rows(op.v, block, false));
  bind_pages(d, range, words, true);
  d.bind(meta());
  d.set_push(params::StoreParams{
      .rows = word(block.count),
      .q_heads = word(q_heads),
      .kv_heads = word(kv_heads),
      .pairs = first ? word(pairs) : 0,
      .interleaved = table != nullptr && table->interleaved,
      .q_at = word(op.q.col),
      .q_stride = op.q ? stride(op.q) : 0,
      .k_at = word(op.k.col),
      .k_stride = op.k ? stride(op.k) : 0,
      .v_at = word(op.v.col),
      .v_stride = op.v ? stride(op.v) : 0,
      .cells_at = (op.pages == Pages::kept ? run_.tables.kept_cells_at : run_.tables.cells_at) + word(block.first),
      .turns_at = table != nullptr ? run_.tables.turns_at[static_cast<std::size_t>(op.table)] + word(block.first * 2 * pairs) : 0,
      .factors_at = op.temperature >= 0 ? run_.tables.factors_at[static_cast<std::size_t>(op.temperature)] + word(block.first) : 0,
      .q_factors = op.temperature >= 0,
      .page_first = word(range.first),
      .page_count = word(range.pages),
      .k_page_words = static_cast<uint>(words.keys),
      .v_page_words = static_cast<uint>(words.values)});
  const std::int64_t heads = q_heads + (op.pages == Pages::none ? 1 : 2) * kv_heads;
  const double values = static_cast<double>(block.count * heads) * op.key_dim;
  push(d, ceil_div(block.count * heads, kLanes / span), values * 8, values * 8);
}

// ---------------------------------------------------------------- attention
std::int64_t GpuLowering::most_keys(const AttendShape& shape) const {
  if (shape.cached) return std::min<std::int64_t>(std::int64_t{run_.pages.units} * kPageTokens, 4096);
  return run_.counts.segments > 0 ? ceil_div(run_.counts.tokens, run_.counts.segments) : 0;
}

void GpuLowering::operator()(const AttendStep& step) {
  const auto a = static_cast<std::size_t>(step.shape);
  const AttendShape& shape = run_.plan.attends[a];
  const AttendTables& tables = run_.tables.attends[a];
  const KvFormat format = format_of(pages_of(shape));
  const std::vector<PageRange> ranges = page_ranges(pages_of(shape), step.op.cache, page_words(format, kept_shape(shape)));
  for (const TileBlock& tiles : tables.blocks) {
    const Partials partials = partials_of(shape, tables, tiles);
    for (std::size_t r = 0; r < ranges.size(); ++r) attend(step, tiles, partials, ranges[r], word(static_cast<std::int64_t>(r)));
    if (tables.parts > 1) merge(step.op, shape, tables, tiles, partials);
  }
}

GpuLowering::Partials GpuLowering::partials_of(const AttendShape& shape, const AttendTables& tables, const TileBlock& tiles) const {
  Partials p;
  p.queries =
      static_cast<std::uint64_t>(tiles.rows) * static_cast<std::uint64_t>(shape.kv_heads) * static_cast<std::uint64_t>(shape.heads_per_kv);
  p.states_at = p.queries * tables.parts * params::padded_dim(word(shape.value_dim));
  p.binding = {run_.buffers.scratch, run_.areas.partials, params::attend_partial_words(p.queries, tables.parts, word(shape.value_dim)) * 4,
               true};
  return p;
}

void GpuLowering::attend(const AttendStep& step, const TileBlock& tiles, const Partials& partials, const PageRange& range, uint part) {
  const Attend& op = step.op;
  const AttendShape& shape = run_.plan.attends[static_cast<std::size_t>(step.shape)];
  const AttendTables& tables = run_.tables.attends[static_cast<std::size_t>(step.shape)];
  const KvFormat format = format_of(pages_of(shape));
  const PageWords words = page_words(format, kept_shape(shape));
  const Block block{tiles.first_row, tiles.rows};
  const bool bias = op.bias != VectorId::none, slopes = op.slopes != VectorId::none, placed = op.places != VectorId::none;
  KeyedDispatch d = dispatch("attend", "attend",
                             {params::kAttendLanes, number(format), word(shape.key_dim), word(shape.value_dim), tables.tile.queries,
                              tables.tile.keys, uint{bias}, uint{slopes}, uint{op.sinks != VectorId::none},
                              uint{op.by_query ? params::kAttendByQuery : 0u} | uint{op.by_key ? params::kAttendByKey : 0u}});
  d.bind(rows(op.q, block, false));
  bind_pages(d, range, words, false);
  d.bind(meta());
  d.bind(tables.parts == 1 ? rows(op.out, block, true) : partials.binding);
  const auto [bias_at, slopes_at, sinks_at, places_at] = bind_vectors(d, {op.bias, op.slopes, op.sinks, op.places});
  // Binds by_query and by_key for all rows of the batch and not only for the block, because a query may attend to a key in any row. One
  // binding can hold all rows, because place() (plan.cpp) throws otherwise.
  if (placed) d.bind(rows(by_place(op), {0, run_.counts.tokens}, false));
  const uint side = op.window > 0 ? word(op.window) : uint{params::kNoWindow};
  d.set_push(
      params::AttendParams{.tiles = tiles.tiles,
                           .kv_heads = word(shape.kv_heads),
                           .heads_per_kv = word(shape.heads_per_kv),
                           .tile_heads = tables.tile.heads,
                           .head_blocks = tables.tile.head_blocks,
                           .splits = tables.splits,
                           .part_first = part * tables.splits,
                           .parts = tables.parts,
                           .states_at = static_cast<uint>(partials.states_at),
                           .tiles_at = tiles.tiles_at,
                           .segments_at = shape.cached ? run_.tables.segments_at : run_.tables.kept_segments_at,
                           .first_row = word(tiles.first_row),
                           .page_first = word(range.first),
                           .page_count = word(range.pages),
                           .k_page_words = static_cast<uint>(words.keys),
                           .v_page_words = static_cast<uint>(words.values),
                           .behind = op.causal && op.window > 0 ? side - 1 : side,
                           .ahead = op.causal ? 0 : side,
                           .chunk = word(op.chunk),
                           .q_at = word(op.q.col),
                           .q_stride = stride(op.q),
                           .out_at = word(op.out.col),
                           .out_stride = stride(op.out),
                           .scale = op.scale,
                           .softcap = op.softcap,
                           .bias_at = bias_at,
                           .slopes_at = slopes_at,
                           .sinks_at = sinks_at,
                           .places_at = places_at,
                           .distances_at = step.distances >= 0 ? run_.tables.distances_at[static_cast<std::size_t>(step.distances)] : 0});
  const double pairs = static_cast<double>(partials.queries) * static_cast<double>(most_keys(shape));
  // Estimates the number of loaded values (`values`). A tile loads each key and value only once for all of its queries, so the number of
  // pairs of query and key is divided by the number of queries per tile.
  const double dims = shape.key_dim + shape.value_dim, values = pairs / (tables.tile.rows * tables.tile.heads) * dims;
  push(d, std::int64_t{tiles.tiles} * shape.kv_heads * tables.tile.head_blocks * tables.splits, 2 * pairs * dims,
       values * (format == KvFormat::f32   ? 4
                 : format == KvFormat::f16 ? 2
                                           : 1));
}

void GpuLowering::merge(const Attend& op, const AttendShape& shape, const AttendTables& tables, const TileBlock& tiles,
                        const Partials& partials) {
  KeyedDispatch d = dispatch("merge", "merge", {64});
  d.bind({partials.binding.buffer, partials.binding.offset, partials.binding.bytes});
  d.bind(rows(op.out, {tiles.first_row, tiles.rows}, true));
  d.set_push(params::MergeParams{.heads = word(std::int64_t{shape.kv_heads} * shape.heads_per_kv),
                                 .value_dim = word(shape.value_dim),
                                 .parts = tables.parts,
                                 .states_at = static_cast<uint>(partials.states_at),
                                 .out_at = word(op.out.col),
                                 .out_stride = stride(op.out)});
  push(d, static_cast<std::int64_t>(partials.queries), static_cast<double>(partials.queries) * tables.parts * shape.value_dim * 2,
       static_cast<double>(partials.binding.bytes));
}

}  // namespace pumice::vulkan
