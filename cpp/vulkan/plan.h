// A program as a device runs it: everything that does not depend on a batch.
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
// One dispatch of store.comp does Rope of q, Rope of k, and Store of k and v, or those of the three that follow each other in the program.
// Attention without a cache stores its keys and values as well, in pages of the run's scratch memory ("kept").
enum class Pages : std::uint8_t { none, cache, kept };
struct RopeStore {
  View q, k, v;                             // q, or k and v, may be missing
  std::int32_t key_dim = 0, value_dim = 0;  // key_dim for heads of q and k, value_dim for heads of v
  std::int32_t table = -1;                  // index in GpuPlan::ropes; -1 if q and k are not rotated
  std::int32_t temperature = -1;            // index in GpuPlan::temperatures; -1 if q is not multiplied
  Pages pages = Pages::none;
  CacheId cache = CacheId::none;
};
struct AttendStep {
  Attend op;
  std::int32_t shape = 0;       // index in GpuPlan::attends
  std::int32_t distances = -1;  // index in GpuPlan::distances; -1 without bias and places (relative positions)
};
struct TopStep {
  Top op;
  std::int32_t table = 0;  // index in Tables::tops_at
};
using GpuStep = std::variant<Embed, Norm, Linear, GatedLinear, Multiply, RopeStore, AttendStep, Select, Pool, LogProb, TopStep>;

struct GpuPlan {
  Program program;
  ProgramFacts facts;
  std::vector<GpuStep> steps;
  std::vector<RopeTable> ropes;           // distinct
  std::vector<Temperature> temperatures;  // distinct
  std::vector<AttendShape> attends;       // distinct
  std::vector<Distances> distances;       // distinct
  bool positions = false, types = false, cached = false, kept = false;
  Variants variants;                 // variants that this program can use
  std::int64_t quantized_words = 0;  // words of the widest row of int8 activations

  TableRequest tables() const { return {program, facts, ropes, temperatures, attends, distances, positions, types, cached, kept}; }
};

GpuPlan make_plan(Program program, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device);

// Returns the variants that a device offers. VariantTests tests them before they are used.
Variants offered(const PhysicalDevice& device, Compute compute);

// ---------------------------------------------------------------- memory of a run
// Number of rows in a batch, for each kind of rows.
struct Counts {
  std::int64_t tokens = 0, segments = 0, selected = 0;
  std::int64_t of(Rows rows) const { return rows == Rows::tokens ? tokens : rows == Rows::segments ? segments : selected; }
};

// Offsets in the scratch buffer of a run, in bytes.
struct Areas {
  std::vector<std::uint64_t> slots;
  std::uint64_t quantized = 0, partials = 0, kept = 0, top = 0, total = 0;
  std::uint64_t partial_bytes = 0, kept_bytes = 0;
};
Areas place(const GpuPlan& plan, const Counts& counts, std::span<const AttendTables> attends, std::int64_t kept_pages, std::uint64_t range);

// Returns the maximum bytes of the tables (Tables) for a run of `rows` rows whose segments have no past, with one segment per row.
std::uint64_t table_bytes(const GpuPlan& plan, std::int64_t rows);

// Words of a page of keys, and words of a page of values.
struct PageWords {
  std::uint64_t keys = 0, values = 0;
  std::uint64_t most_bytes() const { return 4 * std::max(keys, values); }
};
PageWords page_words(KvFormat format, const CacheShape& shape);
inline CacheShape kept_shape(const AttendShape& shape) { return {shape.kv_heads, shape.key_dim, shape.value_dim}; }
// Returns how many bindings the pages of an encoder's keys need. The pages of its values need as many more.
std::uint32_t kept_ranges(const AttendShape& shape, std::int64_t kept_pages, std::uint64_t range);

}  // namespace pumice::vulkan
