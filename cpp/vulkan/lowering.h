// From a program and the shape of a batch to dispatches. Lowering does not look at a batch's contents: these are in the tables.
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
  std::uint64_t meta_bytes = 0;  // as bound
};

// All that the commands of a run depend on.
struct GpuRun {
  const GpuPlan& plan;
  const GpuWeights& weights;
  const PhysicalDevice& device;
  Counts counts;
  const Tables& tables;
  const Areas& areas;
  RunBuffers buffers;
  const GpuCaches::Slabs& caches;   // empty where the program has none
  KvFormat format = KvFormat::f32;  // of the caches
};

// The commands of a run.
std::vector<Command> lower(const GpuRun& run, Pipelines& pipelines);

// The pipelines that a program needs for few rows and for many.
std::vector<PipelineKey> pipelines_of(const GpuPlan& plan, const GpuWeights& weights, const PhysicalDevice& device, KvFormat format);

}  // namespace pumice::vulkan
