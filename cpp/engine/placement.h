// Which layer runs where, and what it costs: computed from metadata alone, printed by plan() and summary(), checked before loading.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/description.h"

namespace pumice::engine {

// As pumice.load() takes them. Empty optionals are automatic.
struct LoadOptions {
  std::string device = "auto";
  std::optional<std::int64_t> gpu_layers;  // -1: all
  std::optional<Format> quantize;
  std::optional<std::int64_t> n_ctx;
  KvFormat kv_format = KvFormat::f16;
  std::optional<std::uint64_t> kv_budget;  // bytes
  Compute compute = Compute::automatic;
  int threads = 0;
  std::optional<PoolKind> pooling;
};

struct PlacementRow {
  std::string name;    // "embedding", "layer 0", ..., "head"
  std::string device;
  std::uint64_t weights = 0;  // bytes as packed on the device; a tied head costs nothing again
  std::uint64_t kv = 0;       // bytes of the keys and values of one sequence of n_ctx positions
  std::string formats;        // "Q4_K, Q6_K"
};

// Layers [first, last) on one device.
struct StagePlan {
  std::size_t device;  // index into Placement::devices
  std::size_t first, last;
};

struct Placement {
  std::vector<std::string> devices;
  std::vector<StagePlan> stages;
  std::vector<PlacementRow> rows;
  std::uint64_t weights = 0, scratch = 0, kv_budget = 0, kv_page = 0, memory_free = 0;  // bytes
  std::int64_t n_ctx = 0;
  std::vector<std::string> notes;  // what was capped or did not fit, and which setting changes it
};

// Rows of a forward pass that scratch is planned for: the generator's prefill chunk.
inline constexpr std::int64_t kPlannedRows = 512;
inline constexpr std::int64_t kPlannedHeadRows = 16;  // sequences that get logits at once

// Throws out_of_memory with the numbers when weights and scratch, or the caches asked for, do not fit into free memory.
Placement place(const model::Description& description, const std::vector<std::shared_ptr<Backend>>& backends, const LoadOptions& options);

}  // namespace pumice::engine
