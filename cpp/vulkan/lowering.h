// From a program and the shape of a batch to dispatches. Nothing here touches a batch's contents: those are in the tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"
#include "vulkan/cache_store.h"
#include "vulkan/pipelines.h"
#include "vulkan/recorder.h"
#include "vulkan/tables.h"
#include "vulkan/variants.h"
#include "vulkan/weights.h"

namespace pumice::vulkan {

// A program as this device runs it: what does not depend on a batch.
struct Plan {
  Program program;
  ProgramFacts facts;
  std::vector<Rope> ropes;           // distinct
  std::vector<AttendShape> attends;  // distinct
  std::vector<std::int32_t> rope_of, attend_of;  // by operation; -1: none
  bool positions = false, types = false, cached = false, kept = false;
  Variants variants;                 // those that it has a use for
  std::int64_t quantised_words = 0;  // of a row of int8 activations, the widest
  std::int32_t widest_norm = 0;
};

Plan make_plan(Program program, const WeightShapes& weights, const Variants& allowed, const PhysicalDevice& device);

// What a device offers: to be tested before it is used.
Variants offered(const PhysicalDevice& device, Compute compute);

// Rows of a batch, by kind.
struct Counts {
  std::int64_t tokens = 0, segments = 0, selected = 0;
  std::int64_t of(Rows rows) const { return rows == Rows::tokens ? tokens : rows == Rows::segments ? segments : selected; }
};

// Where things lie in the scratch buffer of a run; bytes.
struct Areas {
  std::vector<std::uint64_t> slots;
  std::uint64_t quantised = 0, partials = 0, kept = 0, top = 0, total = 0;
  std::uint64_t partial_bytes = 0, kept_bytes = 0;
};
Areas place(const Plan& plan, const Counts& counts, std::span<const AttendTables> attends, std::int64_t kept_pages, std::uint64_t range);

// Bytes of a run's tables (Tables), each of `rows` rows being a segment of its own, without a past.
std::uint64_t table_bytes(const Plan& plan, std::int64_t rows);

// Pages of an encoder's scratch store lie in as many ranges as bindings need.
std::uint32_t kept_ranges(const AttendShape& shape, std::int64_t kept_pages, std::uint64_t range);

struct RunBuffers {
  const Buffer *scratch = nullptr, *meta = nullptr, *in = nullptr, *out = nullptr, *ones = nullptr;
};

// The commands of one run. `format`: of the caches; without them (null) nothing depends on it.
std::vector<Command> lower(const Plan& plan, const GpuWeights& weights, Device& device, const Counts& counts, const Tables& tables,
                           const Areas& areas, const RunBuffers& buffers, const GpuCaches::Slabs* caches, KvFormat format);

// The pipelines that a program needs for few rows and for many.
std::vector<PipelineKey> pipelines_of(const Plan& plan, const GpuWeights& weights, Device& device, KvFormat format);

}  // namespace pumice::vulkan
