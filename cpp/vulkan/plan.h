// A plan is a program in the form in which a device runs it. It has everything that does not depend on a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"
#include "vulkan/device.h"
#include "vulkan/tables.h"
#include "vulkan/variants.h"

namespace pumice::vulkan {

// ---------------------------------------------------------------- steps
// Where a step stores keys and values: nowhere (`none`), in the pages of a cache (`cache`), or, for attention without a cache, in pages in
// the run's scratch memory (`kept`).
enum class Pages : std::uint8_t { none, cache, kept };
// A step for up to three successive operations of a program: Rope of q, Rope of k, and Store of k and v. One dispatch of store.comp
// executes all of them.
struct RopeStore {
  // q is empty if the step handles only k and v. v is empty if the step stores nothing. If the step only rotates one view, that view is q.
  View q, k, v;
  std::int32_t key_dim = 0, value_dim = 0;  // columns of a head of q or k (key_dim), and of a head of v (value_dim)
  std::int32_t table = -1;                  // index in GpuPlan::ropes; -1 if q and k are not rotated
  std::int32_t temperature = -1;            // index in GpuPlan::temperatures; -1 if q is not multiplied by a temperature factor
  Pages pages = Pages::none;
  CacheId cache = CacheId::none;
};
struct AttendStep {
  Attend op;
  std::int32_t shape = 0;       // index in GpuPlan::attends
  std::int32_t distances = -1;  // index in GpuPlan::distances; -1 if the operation has neither a bias nor `places`
};
struct ExpertsStep {
  Experts op;
  std::int32_t experts = 0, chosen = 0, width = 0;  // width: number of rows of one expert's matrix `up`
  std::int64_t block_rows = 1;                      // maximum number of rows of the batch that one dispatch handles
  // Whether activations may be rounded to 8 bits, for the products with `up` and `gate` (int8_up) and with `down` (int8_down).
  bool int8_up = false, int8_down = false;
};
struct ConvStep {
  Conv op;
  std::int32_t spans = 0;  // index in GpuPlan::spans
};
struct ScanStep {
  Scan op;
  std::int32_t spans = 0;  // index in GpuPlan::spans
};
struct TopStep {
  Top op;
  std::int32_t table = 0;  // index in Tables::tops_at
};
using GpuStep = std::variant<Embed, Norm, Linear, GatedLinear, HeadLinear, Route, ExpertsStep, Multiply, RopeStore, AttendStep, ConvStep,
                             ScanStep, Select, Pool, LogProb, TopStep>;

struct GpuPlan {
  Program program;
  ProgramFacts facts;
  std::vector<GpuStep> steps;
  // These lists have the distinct values that occur in the operations of the program.
  std::vector<RopeTable> ropes;
  std::vector<Temperature> temperatures;
  std::vector<AttendShape> attends;
  std::vector<Distances> distances;
  std::vector<SpanShape> spans;
  // Whether the program uses position embeddings, type embeddings, pages of caches, and pages in scratch memory.
  bool positions = false, types = false, cached = false, kept = false;
  Variants variants;                 // variants that this program can use
  std::int64_t quantized_words = 0;  // number of words in the widest row of int8 activations

  TableRequest tables() const { return {program, facts, ropes, temperatures, attends, distances, spans, positions, types, cached, kept}; }
};

GpuPlan make_plan(Program program, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device);

// Returns the variants that the device and this Compute allow. Their self-test (VariantTests) comes later.
Variants offered(const PhysicalDevice& device, Compute compute);

// ---------------------------------------------------------------- memory of a run
// The number of rows of each kind in a batch.
struct Counts {
  std::int64_t tokens = 0, segments = 0, selected = 0;
  std::int64_t of(Rows rows) const { return rows == Rows::tokens ? tokens : rows == Rows::segments ? segments : selected; }
  bool operator==(const Counts&) const = default;
};

// Byte offsets of the areas in a run's scratch buffer. `total` is the size of the buffer. partial_bytes and kept_bytes are the sizes of the
// areas `partials` and `kept`.
struct Areas {
  std::vector<std::uint64_t> slots;
  std::uint64_t quantized = 0, partials = 0, kept = 0, top = 0, scan = 0, experts = 0, total = 0;
  std::uint64_t partial_bytes = 0, kept_bytes = 0;
};
Areas place(const GpuPlan& plan, const Counts& counts, std::span<const AttendTables> attends, std::span<const std::vector<SpanBlock>> spans,
            std::int64_t kept_pages, std::uint64_t range);

// The range of a run's scratch memory that a Scan uses. One binding holds the whole range. The range contains the factors of each row and
// head of a block, and two sets of state matrices. A segment that continues in the next block passes its matrices on in a set. Even blocks
// read the first set and write the second, odd blocks the other way round. With a single set, a segment that begins in a block and
// continues could overwrite the matrices of a segment that ends in the same block.
struct ScanArea {
  std::uint64_t carry_at[2] = {}, bytes = 0;  // carry_at has the byte offsets of the two sets, both 0 if there is only one block
};
ScanArea scan_area(const Scan& op, std::span<const SpanBlock> blocks);

// The range of a run's scratch memory that Experts uses for a block of `rows` rows. A pair is a row and one of its experts. The range
// contains the list of pairs (sort.comp) at list_at, and for each pair a row with the results of `up` (at hidden_at) and a row with the
// results of `down` (at results_at). Offsets are in bytes.
struct ExpertArea {
  std::uint64_t list_at = 0, hidden_at = 0, results_at = 0, bytes = 0;
  std::uint64_t list_bytes = 0;
};
ExpertArea expert_area(const ExpertsStep& step, std::int64_t rows);

// Returns the number of floats in one operation's state. Throws unsupported_model if the shape is not valid.
std::uint64_t state_words(const StateShape& shape);

// Returns the maximum number of bytes of the tables (class Tables) for a run of `rows` rows whose segments have no past. The tables are
// largest if each row is a segment of its own.
std::uint64_t table_bytes(const GpuPlan& plan, std::int64_t rows);

// The number of words in a page of keys, and in a page of values.
struct PageWords {
  std::uint64_t keys = 0, values = 0;
  std::uint64_t most_bytes() const { return 4 * std::max(keys, values); }
};
PageWords page_words(KvFormat format, const CacheShape& shape);
inline CacheShape kept_shape(const AttendShape& shape) { return {shape.kv_heads, shape.key_dim, shape.value_dim}; }
// Returns the number of ranges into which the pages of an encoder's keys and values are divided. One binding can hold the keys of a range,
// and another binding its values.
std::uint32_t kept_ranges(const AttendShape& shape, std::int64_t kept_pages, std::uint64_t range);

}  // namespace pumice::vulkan
