// The options of pumice.load() and pumice.plan().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/modules.h"

namespace pumice::engine {

inline constexpr std::int64_t kAllLayers = -1;

// Named as in pumice.load(). An empty optional means automatic.
struct LoadOptions {
  std::string device = "auto";
  std::optional<std::int64_t> gpu_layers;  // kAllLayers: all
  std::optional<Format> quantize;
  std::optional<std::int64_t> n_ctx;
  KvFormat kv_format = KvFormat::f16;
  std::optional<std::uint64_t> kv_budget;  // bytes
  Compute compute = Compute::automatic;
  int threads = 0;
  // Vectors of several kinds stand side by side. Empty: as the file says, else the last row in decoders and the mean in encoders.
  std::vector<PoolKind> pooling;
  std::vector<model::ModuleSpec> modules;  // what follows the layers, in order
  std::vector<std::int32_t> score_ids;     // of a causal reranker: its labels are the logits of these ids at the last token
  std::string task;                        // the task whose adapters of the model's own file are merged; empty: none is named
  std::vector<model::LoraSpec> lora;
};

}  // namespace pumice::engine
