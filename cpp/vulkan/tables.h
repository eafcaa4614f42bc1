// Writes the contents of a batch for the shaders to one buffer of words, which params.h calls `meta`. Some numbers here, such as the number
// of tiles and of splits, also determine the dispatches of a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"
#include "shaders/params.h"

namespace pumice::vulkan {

// Returns the number of floats from one row of a slot to the next, so that rows begin at multiples of 256 bytes.
constexpr std::int64_t slot_stride(std::int64_t width) { return (width + 63) / 64 * 64; }

// The properties of an attention operation that determine its tables for a given batch. Operations with equal properties share their
// tables.
struct AttendShape {
  std::int32_t heads_per_kv = 1, kv_heads = 1, key_dim = 0, value_dim = 0;
  bool cached = false, causal = false;
  std::int64_t binding_rows = 0;  // maximum number of rows of q, and of out, in one binding
  bool operator==(const AttendShape&) const = default;
  params::AttendTile tile(std::int64_t rows) const {  // returns the tile for segments of at most `rows` rows
    return params::attend_tile(static_cast<std::uint32_t>(std::max(key_dim, value_dim)), static_cast<std::uint32_t>(heads_per_kv),
                               static_cast<std::uint32_t>(rows));
  }
};

// The parameters of a Rope that multiplies a row by 1 + temperature * ln(1 + floor((position + offset) / length)).
struct Temperature {
  float temperature = 0;
  std::int32_t length = 0, offset = 0;
  bool operator==(const Temperature&) const = default;
};

// The kDistanceWords words in meta for an attention whose scores depend on the distance between query and key. See AttendParams in
// params.h.
struct Distances {
  std::uint32_t reach = 0;
  std::uint32_t by_query_at = 0, by_key_at = 0, by_stride = 0, by_head = 0;  // 0 if the operation has no Attend::places
  bool operator==(const Distances&) const = default;
};

// The tiles of rows [first_row, first_row + rows) of the batch. tiles_at is the index of the word of meta where the tile table begins, and
// `tiles` is the number of tiles.
struct TileBlock {
  std::int64_t first_row = 0, rows = 0;
  std::uint32_t tiles_at = 0, tiles = 0;
  bool operator==(const TileBlock&) const = default;
};
struct AttendTables {
  params::AttendTile tile;
  std::uint32_t splits = 1, parts = 1;
  std::vector<TileBlock> blocks;
  bool operator==(const AttendTables&) const = default;
};

// The properties of a Conv or Scan that determine its table of spans for a given batch. Operations with equal properties share a table. A
// span is a run of rows of one segment that one group computes (params.h).
struct SpanShape {
  std::int64_t rows = 1;        // maximum number of rows in a span
  std::int64_t block_rows = 1;  // maximum number of rows in a block; a dispatch handles the spans of one block
  std::int64_t reach = 0;       // a row needs `reach` earlier rows of its segment; 1 for Scan, whose matrix contains all earlier rows
  bool chained = false;         // true for Scan: a span continues from the span before it, so a block has only one span of a segment
  bool stateful = false;        // whether the operation has a state
  bool operator==(const SpanShape&) const = default;
};
// Rows [first, first + rows) of the batch. spans_at is the index of the word of meta where the table of their spans begins, and `spans` is
// the number of these spans.
struct SpanBlock {
  std::int64_t first = 0, rows = 0;
  std::uint32_t spans_at = 0, spans = 0;
  bool operator==(const SpanBlock&) const = default;
};
// Cuts a batch into blocks. Does not set spans_at and `spans` of the blocks.
std::vector<SpanBlock> span_blocks(const SpanShape& shape, std::span<const Segment> segments);

struct TableRequest {
  const Program& program;
  const ProgramFacts& facts;
  // The lists and flags of GpuPlan.
  std::span<const RopeTable> ropes;
  std::span<const Temperature> temperatures;
  std::span<const AttendShape> attends;
  std::span<const Distances> distances;
  std::span<const SpanShape> spans;
  bool positions = false, types = false, cached = false, kept = false;
  // For each of `attends`, the number of ranges into which its pages are divided so that each fits in one binding. Empty if all are 1.
  std::span<const std::uint32_t> page_ranges = {};
  std::uint64_t range = UINT32_MAX;  // maximum bytes of a binding
  bool software = false;             // whether the device is a software device, for which attention gets fewer and shorter groups
};

// The offsets of a batch's tables, and everything else that its dispatches depend on. Two batches with equal layouts have the same
// commands.
struct TableLayout {
  // A member `..._at` is the index of the word where a table begins.
  std::uint32_t ids_at = 0, types_at = 0, positions_at = 0, selected_at = 0;
  std::uint32_t segments_at = 0;       // table of segments whose page lists are those of the caches
  std::uint32_t kept_segments_at = 0;  // table of segments whose page lists are those of the run's scratch memory
  std::uint32_t cells_at = 0, kept_cells_at = 0;
  std::vector<std::uint32_t> turns_at;      // one table for each RopeTable
  std::vector<std::uint32_t> factors_at;    // one table for each Temperature
  std::vector<std::uint32_t> distances_at;  // one table for each Distances
  std::vector<AttendTables> attends;
  std::vector<std::vector<SpanBlock>> spans;  // the blocks of each SpanShape
  std::vector<std::uint32_t> tops_at;         // one row table for each Top, in the order of the program
  std::int64_t kept_pages = 0;                // number of pages in the run's scratch memory
  bool operator==(const TableLayout&) const = default;
};

class Tables : public TableLayout {
 public:
  void build(const TableRequest& request, const Batch& batch);

  const TableLayout& layout() const { return *this; }
  std::span<const std::uint32_t> words() const { return words_; }

 private:
  std::uint32_t here() const { return static_cast<std::uint32_t>(words_.size()); }
  std::uint32_t put(std::span<const std::int32_t> values);
  std::uint32_t put_turns(const RopeTable& rope, const Batch& batch);
  std::uint32_t put_factors(const Temperature& heat, const Batch& batch);
  std::uint32_t put_segments(const Batch& batch);
  void fill_pages(const Batch& batch, bool kept, std::uint32_t segments_at);
  std::uint32_t put_top(const Top& op, const TableRequest& request, const Batch& batch);
  void fill_top(std::uint32_t top_at, const Top& op, const Batch& batch);
  void put_tiles(const AttendShape& shape, const TableRequest& request, const Batch& batch, std::uint32_t ranges, AttendTables& tables);

  void put_spans(const SpanShape& shape, const Batch& batch, std::vector<SpanBlock>& blocks);
  void fill_saves(const Batch& batch);

  std::vector<std::uint32_t> words_;
};

// top_blocks() returns the number of blocks into which Top divides the vocabulary. top_found_bytes() returns the number of bytes that stage
// 0 of Top writes for `rows` rows. top_rows() returns the maximum number of rows for which one binding holds the logits, another the
// results of stage 0, and another the final results.
constexpr std::int64_t top_blocks(const Top& op) { return (op.logits.width + params::kTopBlock - 1) / params::kTopBlock; }
std::uint64_t top_found_bytes(const Top& op, std::int64_t rows);
std::int64_t top_rows(const Program& program, const Top& op, std::uint64_t range);

// Returns the number of pages in scratch memory that the keys and values of an encoder's batch need.
std::int64_t kept_pages(std::span<const Segment> segments);

}  // namespace pumice::vulkan
