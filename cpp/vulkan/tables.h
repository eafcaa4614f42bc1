// The contents of a batch for the shaders, in one buffer of words ("meta"). A few of the numbers here also decide the dispatches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program.h"
#include "core/program_check.h"
#include "shaders/params.h"

namespace pumice::vulkan {

constexpr std::int64_t slot_stride(std::int64_t width) { return (width + 63) / 64 * 64; }  // floats; rows begin at multiples of 256 bytes

// The numbers that decide attention's tables, together with the batch. Layers with equal numbers share their tables.
struct AttendShape {
  std::int32_t heads_per_kv = 1, kv_heads = 1, key_dim = 0, value_dim = 0;
  bool cached = false, causal = false;
  std::int64_t binding_rows = 0;  // rows of q, and rows of out, that one binding can hold
  bool operator==(const AttendShape&) const = default;
  params::AttendTile tile(std::int64_t rows) const {  // for segments of up to `rows` rows
    return params::attend_tile(static_cast<std::uint32_t>(std::max(key_dim, value_dim)), static_cast<std::uint32_t>(heads_per_kv),
                               static_cast<std::uint32_t>(rows));
  }
};

// Rope multiplies a row by 1 + temperature * ln(1 + floor(position / length)).
struct Temperature {
  float temperature = 0;
  std::int32_t length = 0;
  bool operator==(const Temperature&) const = default;
};

// The kDistanceWords words of meta for scores that depend on the distance between query and key (params.h).
struct Distances {
  std::uint32_t reach = 0;
  std::uint32_t by_query_at = 0, by_key_at = 0, by_stride = 0, by_head = 0;  // set with Attend::places
  bool operator==(const Distances&) const = default;
};

struct TileBlock {  // rows [first_row, first_row + rows) of the batch
  std::int64_t first_row = 0, rows = 0;
  std::uint32_t tiles_at = 0, tiles = 0;
};
struct AttendTables {
  params::AttendTile tile;
  std::uint32_t splits = 1, parts = 1;
  std::vector<TileBlock> blocks;
};

struct TableRequest {
  const Program& program;
  const ProgramFacts& facts;
  std::span<const RopeTable> ropes;           // distinct
  std::span<const Temperature> temperatures;  // distinct
  std::span<const AttendShape> attends;       // distinct
  std::span<const Distances> distances;       // distinct
  bool positions = false, types = false, cached = false, kept = false;
  std::span<const std::uint32_t> page_ranges = {};  // for each attend shape, the bound ranges that hold its pages; empty if one holds all
  std::uint64_t range = UINT32_MAX;                 // bytes that a binding can hold
  bool software = false;                            // a software device has few, slow lanes, so it gets few and short groups
};

class Tables {
 public:
  void build(const TableRequest& request, const Batch& batch);

  std::span<const std::uint32_t> words() const { return words_; }
  std::uint32_t ids_at = 0, types_at = 0, positions_at = 0, selected_at = 0;
  std::uint32_t segments_at = 0;       // table of segments with pages of the caches
  std::uint32_t kept_segments_at = 0;  // table of segments with pages of the run's scratch memory
  std::uint32_t cells_at = 0, kept_cells_at = 0;
  std::vector<std::uint32_t> turns_at;      // for each rope
  std::vector<std::uint32_t> factors_at;    // for each temperature
  std::vector<std::uint32_t> distances_at;  // for each Distances
  std::vector<AttendTables> attends;
  std::vector<std::uint32_t> tops_at;  // row tables, one for each Top in program order
  std::int64_t kept_pages = 0;

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

  std::vector<std::uint32_t> words_;
};

// top_blocks() returns the number of vocabulary blocks that a Top ranks one by one. top_rows() returns for how many rows one binding can
// hold the logits, one the results, and one what stage 0 finds.
constexpr std::int64_t top_blocks(const Top& op) { return (op.logits.width + params::kTopBlock - 1) / params::kTopBlock; }
std::uint64_t top_found_bytes(const Top& op, std::int64_t rows);
std::int64_t top_rows(const Program& program, const Top& op, std::uint64_t range);

// Returns the number of scratch-memory pages for the keys and values of an encoder's batch.
std::int64_t kept_pages(std::span<const Segment> segments);

}  // namespace pumice::vulkan
