// Lowers a program to dispatches for batches of one shape. The contents of a batch do not matter here, because shaders read them from the
// tables (tables.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "vulkan/cache_store.h"
#include "vulkan/pipelines.h"
#include "vulkan/plan.h"
#include "vulkan/recorder.h"
#include "vulkan/tables.h"
#include "vulkan/weights.h"

namespace pumice::vulkan {

struct RunBuffers {
  const Buffer *scratch = nullptr, *meta = nullptr, *in = nullptr, *out = nullptr;
  std::uint64_t meta_bytes = 0;  // number of bytes of `meta` that a dispatch binds
};

// Everything that the commands of a run depend on.
struct GpuRun {
  const GpuPlan& plan;
  const GpuWeights& weights;
  const PhysicalDevice& device;
  Counts counts;
  const Tables& tables;
  const Areas& areas;
  RunBuffers buffers;
  const Slabs::All &pages, &states;  // empty if the program has no caches (`pages`) or no states (`states`)
  KvFormat format = KvFormat::f32;   // format of the caches
};

// Returns the commands of a run in the order of execution.
std::vector<Command> lower(const GpuRun& run, Pipelines& pipelines, const Cancel& cancel);

// Returns the pipelines that a program needs, both for batches of few rows (decoding) and for batches of many rows (prefill).
std::vector<PipelineKey> pipelines_of(const GpuPlan& plan, const GpuWeights& weights, const PhysicalDevice& device, KvFormat format);

}  // namespace pumice::vulkan
