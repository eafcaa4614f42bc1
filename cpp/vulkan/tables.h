// Writes the contents of a batch to one buffer of words, from which shaders read them. params.h calls this buffer `meta`. Some of the
// numbers that are computed here, such as the number of tiles, also determine the dispatches of a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"
#include "shaders/params.h"

namespace pumice::vulkan {

// Returns the number of floats from one row of a slot to the next. It is rounded up so that rows begin at multiples of 256 bytes.
constexpr std::int64_t slot_stride(std::int64_t width) { return (width + 63) / 64 * 64; }

// The properties of an attention operation that, together with a batch, determine its tables. Operations with equal properties share their
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

// The kDistanceWords words in meta for an attention whose scores depend on the distance between query and key. AttendParams in params.h
// explains them.
struct Distances {
  std::uint32_t reach = 0;
  std::uint32_t by_query_at = 0, by_key_at = 0, by_stride = 0, by_head = 0;  // all 0 if the operation has no Attend::places
  bool operator==(const Distances&) const = default;
};

// The tiles of rows [first_row, first_row + rows) of the batch. There are `tiles` tiles, and their table begins at word tiles_at of meta.
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

// The properties of a Conv or Scan that, together with a batch, determine its table of spans. Operations with equal properties share a
// table. A span is a range of rows of one segment that one workgroup computes (params.h).
struct SpanShape {
  std::int64_t rows = 1;        // maximum number of rows in a span
  std::int64_t block_rows = 1;  // maximum number of rows in a block; a dispatch handles the spans of one block
  std::int64_t reach = 0;       // number of earlier rows of the segment that a row needs; 1 for Scan, because a state sums up all of them
  bool chained = false;         // true for Scan: a span needs the results of the span before, so a block has only one span of a segment
  bool stateful = false;        // whether the operation has a state
  bool operator==(const SpanShape&) const = default;
};
// Rows [first, first + rows) of the batch. They have `spans` spans, and the table of these spans begins at word spans_at of meta.
struct SpanBlock {
  std::int64_t first = 0, rows = 0;
  std::uint32_t spans_at = 0, spans = 0;
  bool operator==(const SpanBlock&) const = default;
};
// Cuts a batch into blocks. spans_at and `spans` of the returned blocks are not set yet.
std::vector<SpanBlock> span_blocks(const SpanShape& shape, std::span<const Segment> segments);

struct TableRequest {
  const Program& program;
  const ProgramFacts& facts;
  // These members come from the members of GpuPlan with the same names.
  std::span<const RopeTable> ropes;
  std::span<const Temperature> temperatures;
  std::span<const AttendShape> attends;
  std::span<const Distances> distances;
  std::span<const SpanShape> spans;
  bool positions = false, types = false, cached = false, kept = false;
  // page_ranges[i] is the number of ranges into which the pages of attends[i] are divided, so that each range fits in one binding. Empty if
  // all these numbers are 1.
  std::span<const std::uint32_t> page_ranges = {};
  std::uint64_t range = UINT32_MAX;  // maximum number of bytes in a binding
  bool software = false;             // whether the device runs on the CPU; if so, attention gets fewer workgroups, each with fewer keys
};

// The offsets of a batch's tables, and everything else that its dispatches depend on. Two batches with equal layouts have the same
// commands.
struct TableLayout {
  // A member whose name ends in _at is the index of the word of meta where a table begins.
  std::uint32_t ids_at = 0, types_at = 0, positions_at = 0, selected_at = 0;
  std::uint32_t segments_at = 0;       // table of segments, with lists of their pages in the caches
  std::uint32_t kept_segments_at = 0;  // table of segments, with lists of their pages in scratch memory
  std::uint32_t cells_at = 0, kept_cells_at = 0;
  std::vector<std::uint32_t> turns_at;      // turns_at[i] is the table of TableRequest::ropes[i]
  std::vector<std::uint32_t> factors_at;    // factors_at[i] is the table of TableRequest::temperatures[i]
  std::vector<std::uint32_t> distances_at;  // distances_at[i] is the table of TableRequest::distances[i]
  std::vector<AttendTables> attends;
  std::vector<std::vector<SpanBlock>> spans;  // spans[i] has the blocks for TableRequest::spans[i]
  std::vector<std::uint32_t> tops_at;         // the row tables of all Top operations, in the order of the program
  std::int64_t kept_pages = 0;                // number of pages in scratch memory
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

// Sizes for a Top. top_blocks() returns the number of blocks into which Top divides the vocabulary. top_found_bytes() returns the number of
// bytes that the first of its two dispatches writes for `rows` rows. top_rows() returns the maximum number of rows for which one binding
// can hold the logits, another these bytes, and another the results.
constexpr std::int64_t top_blocks(const Top& op) { return (op.logits.width + params::kTopBlock - 1) / params::kTopBlock; }
std::uint64_t top_found_bytes(const Top& op, std::int64_t rows);
std::int64_t top_rows(const Program& program, const Top& op, std::uint64_t range);

// Returns the number of pages in scratch memory that the keys and values of an encoder's batch need.
std::int64_t kept_pages(std::span<const Segment> segments);

}  // namespace pumice::vulkan
