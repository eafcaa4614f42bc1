#include "vulkan/tables.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/checked.h"

namespace pumice::vulkan {

std::int64_t kept_pages(std::span<const Segment> segments) {
  std::int64_t pages = 0;
  for (const Segment& s : segments) pages += ceil_div(s.rows, kPageTokens);
  return pages;
}

std::uint32_t Tables::put(std::span<const std::int32_t> values) {
  const std::uint32_t at = here();
  words_.insert(words_.end(), values.begin(), values.end());
  return at;
}

// Appends the cosines and sines of a Rope for each row. The host computes them in double, because Vulkan guarantees too little precision
// for angles in the thousands.
std::uint32_t Tables::put_turns(const RopeTable& rope, const Batch& batch) {
  const std::uint32_t at = here();
  const std::size_t pairs = rope.inv_freq.size();
  RopeFrequencies frequencies(rope);
  for (const Segment& segment : batch.segments) {
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      const std::span<const float> inv_freq = frequencies.of(std::max(segment.length, segment.past + i + segment.ahead + 1));
      const auto position = static_cast<float>(segment.past + i + segment.ahead);
      const std::size_t row = words_.size();
      words_.resize(row + 2 * pairs);
      for (std::size_t j = 0; j < pairs; ++j) {
        const double angle = position * inv_freq[j];  // a float32 product, because models were trained with float32 angles
        words_[row + j] = std::bit_cast<std::uint32_t>(static_cast<float>(std::cos(angle)) * rope.magnitude);
        words_[row + pairs + j] = std::bit_cast<std::uint32_t>(static_cast<float>(std::sin(angle)) * rope.magnitude);
      }
    }
  }
  return at;
}

std::uint32_t Tables::put_factors(const Temperature& heat, const Batch& batch) {
  const std::uint32_t at = here();
  for (const Segment& segment : batch.segments) {
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      const std::int64_t lengths = (std::int64_t{segment.past} + i + segment.ahead + heat.offset) / heat.length;
      const double factor = 1 + heat.temperature * std::log1p(static_cast<double>(lengths));
      words_.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(factor)));
    }
  }
  return at;
}

std::uint32_t Tables::put_segments(const Batch& batch) {
  const std::uint32_t at = here();
  for (const Segment& s : batch.segments) {
    words_.insert(words_.end(),
                  {static_cast<std::uint32_t>(s.first), static_cast<std::uint32_t>(s.rows), static_cast<std::uint32_t>(s.past), 0u,
                   static_cast<std::uint32_t>(s.prompt), static_cast<std::uint32_t>(s.unseen)});
  }
  return at;
}

// Appends the page list of each segment. These lists grow from run to run, so they come near the end of the buffer. Otherwise their growth
// would move other tables, whose offsets are fixed in recorded commands.
void Tables::fill_pages(const Batch& batch, bool kept, std::uint32_t segments_at) {
  std::int64_t next = 0;
  for (std::size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    words_[segments_at + params::kSegmentWords * s + 3] = here();
    const std::int64_t pages = ceil_div(std::int64_t{segment.past} + segment.rows, kPageTokens);
    for (std::int64_t p = 0; p < pages; ++p)
      words_.push_back(static_cast<std::uint32_t>(kept ? next++ : segment.pages[static_cast<std::size_t>(p)]));
  }
}

std::uint64_t top_found_bytes(const Top& op, std::int64_t rows) {
  const auto all = static_cast<std::uint64_t>(rows), blocks = static_cast<std::uint64_t>(top_blocks(op));
  return 4 * params::top_found_words(all, blocks, static_cast<std::uint32_t>(op.k));
}

std::int64_t top_rows(const Program& program, const Top& op, std::uint64_t range) {
  const auto row_bytes = [&](const View& view) { return slot_stride(program.slots[static_cast<std::size_t>(view.slot)].width) * 4; };
  const std::int64_t most = std::max({row_bytes(op.logits), row_bytes(op.out), static_cast<std::int64_t>(top_found_bytes(op, 1))});
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(range) / most);
}

// Appends the row table of a Top, with kTopRowWords words for each row. Here only word 2 is set, which is the offset of the row's results
// in the binding `out`. This binding has the results of one block of rows, so offsets begin again with each block. fill_top() sets the
// other words.
std::uint32_t Tables::put_top(const Top& op, const TableRequest& request, const Batch& batch) {
  const std::uint32_t at = here();
  const std::int64_t block = top_rows(request.program, op, request.range);
  const std::int64_t stride = slot_stride(request.program.slots[static_cast<std::size_t>(op.out.slot)].width);
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    words_.insert(words_.end(), {0u, 0u, static_cast<std::uint32_t>(r % block * stride + op.out.col), 0u});
  }
  return at;
}

// Appends the reported ids and the masks of a Top, and completes the row table that put_top() began. Ids and masks come at the end of the
// buffer, like the page lists, because their number changes from run to run.
void Tables::fill_top(std::uint32_t top_at, const Top& op, const Batch& batch) {
  for (std::size_t r = 0; r + 1 < batch.reported_first.size(); ++r) {
    const auto first = static_cast<std::size_t>(batch.reported_first[r]),
               count = static_cast<std::size_t>(batch.reported_first[r + 1]) - first;
    const std::uint32_t list_at = put(batch.reported.subspan(first, count));
    words_[top_at + params::kTopRowWords * r] = list_at;
    words_[top_at + params::kTopRowWords * r + 1] = static_cast<std::uint32_t>(count);
  }
  for (std::size_t r = 0; r < batch.allowed_first.size(); ++r) {
    if (batch.allowed_first[r] < 0) continue;
    const auto mask = batch.allowed.subspan(static_cast<std::size_t>(batch.allowed_first[r]), mask_words(op.logits.width));
    words_[top_at + params::kTopRowWords * r + 3] = here();  // never 0 (no mask), because the row table comes before the masks
    words_.insert(words_.end(), mask.begin(), mask.end());
  }
}

// Appends the tile tables of an attention. The batch is cut into blocks of rows, and each block has a tile table. A tile lies within one
// segment and one block. Tiles with many keys come first. A long tile at the end would run alone, while most of the device is idle.
void Tables::put_tiles(const AttendShape& shape, const TableRequest& request, const Batch& batch, std::uint32_t ranges,
                       AttendTables& tables) {
  std::int64_t longest = 1, most_keys = 1;
  for (const Segment& s : batch.segments) {
    longest = std::max<std::int64_t>(longest, s.rows);
    most_keys = std::max<std::int64_t>(most_keys, std::int64_t{s.past} + s.rows);
  }
  tables.tile = shape.tile(longest);
  std::uint64_t groups = 0;
  for (const Segment& s : batch.segments) groups += static_cast<std::uint64_t>(ceil_div(s.rows, tables.tile.rows));
  groups *= static_cast<std::uint64_t>(shape.kv_heads) * tables.tile.head_blocks;
  // The number of keys is rounded up to a power of two. So `splits` changes rarely while a sequence grows, and a recording can be used for
  // more tokens.
  const std::uint64_t keys = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(most_keys, 256)));
  tables.splits = params::attend_splits(tables.tile, std::max<std::uint64_t>(groups, 1), keys, request.software ? 4 : 1024,
                                        request.software ? 512 : 4096);
  tables.parts = tables.splits * ranges;
  // Maximum number of rows in a block. One binding must hold the block's rows of q, another its rows of out, and if parts > 1, another the
  // partial results.
  std::int64_t block_rows = shape.binding_rows;
  if (tables.parts > 1) {
    const std::uint64_t heads = static_cast<std::uint64_t>(shape.kv_heads) * static_cast<std::uint64_t>(shape.heads_per_kv);
    const std::uint64_t row_bytes = 4 * params::attend_partial_words(heads, tables.parts, static_cast<std::uint32_t>(shape.value_dim));
    block_rows = std::clamp<std::int64_t>(static_cast<std::int64_t>(request.range / row_bytes), 1, block_rows);
  }
  struct Tile {
    std::uint32_t segment, row, rows;
    std::int64_t keys;
  };
  tables.blocks.clear();
  for (std::int64_t first = 0; first < batch.rows; first += block_rows) {
    const std::int64_t end = std::min<std::int64_t>(batch.rows, first + block_rows);
    std::vector<Tile> tiles;
    for (std::size_t s = 0; s < batch.segments.size(); ++s) {
      const Segment& segment = batch.segments[s];
      const std::int64_t from = std::max<std::int64_t>(first, segment.first),
                         to = std::min<std::int64_t>(end, segment.first + segment.rows);
      for (std::int64_t row = from; row < to; row += tables.tile.rows) {
        const std::int64_t rows = std::min<std::int64_t>(tables.tile.rows, to - row);
        tiles.push_back({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(row - segment.first), static_cast<std::uint32_t>(rows),
                         shape.causal ? segment.past + (row - segment.first) + rows : segment.rows - segment.unseen});
      }
    }
    std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.keys > b.keys; });
    tables.blocks.push_back({first, end - first, here(), static_cast<std::uint32_t>(tiles.size())});
    for (const Tile& tile : tiles) words_.insert(words_.end(), {tile.segment, tile.row, tile.rows, 0u});
  }
}

// ---------------------------------------------------------------- spans
namespace {

// Calls each(segment, first row within the segment, number of rows) for each segment that has rows in the range [first, end) of the batch,
// with the rows in this range.
template <class Each>
void each_part(std::span<const Segment> segments, std::int64_t first, std::int64_t end, Each each) {
  auto segment = std::ranges::partition_point(segments, [&](const Segment& s) { return std::int64_t{s.first} + s.rows <= first; });
  for (; segment != segments.end() && segment->first < end; ++segment) {
    const std::int64_t from = std::max<std::int64_t>(first, segment->first),
                       to = std::min(end, std::int64_t{segment->first} + segment->rows);
    each(*segment, from - segment->first, to - from);
  }
}

}  // namespace

std::vector<SpanBlock> span_blocks(const SpanShape& shape, std::span<const Segment> segments) {
  std::vector<SpanBlock> blocks;
  const std::int64_t rows = segments.empty() ? 0 : std::int64_t{segments.back().first} + segments.back().rows;
  for (std::int64_t first = 0; first < rows; first += blocks.back().rows) {
    std::int64_t end = std::min(rows, first + shape.block_rows);
    if (shape.chained) {
      each_part(segments, first, end, [&](const Segment& s, std::int64_t from, std::int64_t count) {
        if (count > shape.rows) end = std::min(end, s.first + from + shape.rows);
      });
    }
    blocks.push_back({first, end - first});
  }
  return blocks;
}

// Appends the table of spans for each block. A save is an instruction to write the state after a certain row. Word 5 of a span is the index
// of its first save among the saves of all segments. fill_saves() replaces this index by an offset in the buffer.
void Tables::put_spans(const SpanShape& shape, const Batch& batch, std::vector<SpanBlock>& blocks) {
  static_assert(params::kSpanWords == 7);
  std::vector<std::size_t> saves_before = {0};  // entry s is the number of saves of the segments before segment s
  for (const Segment& s : batch.segments) saves_before.push_back(saves_before.back() + s.saves.size());
  blocks = span_blocks(shape, batch.segments);
  for (SpanBlock& block : blocks) {
    block.spans_at = here();
    each_part(batch.segments, block.first, block.first + block.rows, [&](const Segment& s, std::int64_t from, std::int64_t count) {
      const auto saves_until = [&](std::int64_t row) {
        const auto comes = [&](const SavedState& saved) { return saved.rows <= row; };
        return shape.stateful ? std::ranges::partition_point(s.saves, comes) - s.saves.begin() : 0;
      };
      for (std::int64_t row = from; row < from + count; row += shape.rows) {
        const std::int64_t rows = std::min(shape.rows, from + count - row), first_save = saves_until(row);
        const bool needs_state = shape.stateful && s.state >= 0 && row < shape.reach;
        const auto before = static_cast<std::int64_t>(saves_before[static_cast<std::size_t>(&s - batch.segments.data())]);
        for (const std::int64_t word : {s.first + row - block.first, rows, row, s.rows - row - rows,
                                        needs_state ? std::int64_t{s.state} : std::int64_t{params::kNoState}, before + first_save,
                                        saves_until(row + rows) - first_save})
          words_.push_back(static_cast<std::uint32_t>(word));
        ++block.spans;
      }
    });
  }
}

// Appends the saves of all segments. Their number changes from run to run, so they come near the end of the buffer. Otherwise a change
// would move other tables, whose offsets are fixed in recorded commands.
void Tables::fill_saves(const Batch& batch) {
  const std::uint32_t saves_at = here();
  for (const Segment& s : batch.segments)
    for (const SavedState& saved : s.saves)
      words_.insert(words_.end(), {static_cast<std::uint32_t>(saved.rows), static_cast<std::uint32_t>(saved.state)});
  for (const std::vector<SpanBlock>& blocks : spans) {
    for (const SpanBlock& block : blocks) {
      for (std::size_t i = 0; i < block.spans; ++i) {
        std::uint32_t& first_save = words_[block.spans_at + params::kSpanWords * i + 5];
        first_save = saves_at + 2 * first_save;
      }
    }
  }
}

void Tables::build(const TableRequest& request, const Batch& batch) {
  words_.clear();
  ids_at = types_at = positions_at = selected_at = segments_at = kept_segments_at = cells_at = kept_cells_at = 0;
  turns_at.clear();
  factors_at.clear();
  distances_at.clear();
  for (const Distances& d : request.distances) {
    static_assert(params::kDistanceWords == 5);
    distances_at.push_back(here());
    words_.insert(words_.end(), {d.reach, d.by_query_at, d.by_key_at, d.by_stride, d.by_head});
  }
  const auto rows = static_cast<std::size_t>(batch.rows);
  if (request.facts.takes_ids) ids_at = put(batch.ids);
  if (request.types) {
    types_at = put(batch.types);
    if (batch.types.empty()) words_.resize(words_.size() + rows, 0);
  }
  const auto each_position = [&](auto word) {
    const std::uint32_t at = here();
    for (std::size_t s = 0; s < batch.segments.size(); ++s) {
      const Segment& segment = batch.segments[s];
      for (std::int32_t i = 0; i < segment.rows; ++i) words_.push_back(word(segment, segment.past + i));
    }
    return at;
  };
  if (request.positions)
    positions_at = each_position([](const Segment&, std::int32_t position) { return static_cast<std::uint32_t>(position); });
  if (request.facts.takes_selected) selected_at = put(batch.selected);
  if (request.cached) {
    cells_at = each_position([](const Segment& segment, std::int32_t position) {
      return static_cast<std::uint32_t>(segment.pages[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens +
                                        position % kPageTokens);
    });
  }
  kept_pages = 0;
  if (request.kept) {
    kept_cells_at = here();
    for (const Segment& segment : batch.segments) {
      for (std::int32_t i = 0; i < segment.rows; ++i) words_.push_back(static_cast<std::uint32_t>(kept_pages * kPageTokens + i));
      kept_pages += ceil_div(segment.rows, kPageTokens);
    }
  }
  for (const RopeTable& rope : request.ropes) turns_at.push_back(put_turns(rope, batch));
  for (const Temperature& heat : request.temperatures) factors_at.push_back(put_factors(heat, batch));
  if (request.facts.takes_segments) segments_at = kept_segments_at = put_segments(batch);
  if (request.kept && request.cached) kept_segments_at = put_segments(batch);
  attends.resize(request.attends.size());
  for (std::size_t a = 0; a < attends.size(); ++a) {
    const AttendShape& shape = request.attends[a];
    put_tiles(shape, request, batch, request.page_ranges.empty() ? 1 : request.page_ranges[a], attends[a]);
  }
  spans.resize(request.spans.size());
  for (std::size_t s = 0; s < spans.size(); ++s) put_spans(request.spans[s], batch, spans[s]);
  tops_at.clear();
  for (const Op& op : request.program.ops) {
    if (const auto* top = std::get_if<Top>(&op)) tops_at.push_back(put_top(*top, request, batch));
  }
  if (request.cached) fill_pages(batch, false, segments_at);
  if (request.kept) fill_pages(batch, true, kept_segments_at);
  if (!spans.empty()) fill_saves(batch);
  auto top_at = tops_at.begin();
  for (const Op& op : request.program.ops) {
    if (const auto* top = std::get_if<Top>(&op)) fill_top(*top_at++, *top, batch);
  }
  if (words_.empty()) words_.push_back(0);
}

}  // namespace pumice::vulkan
