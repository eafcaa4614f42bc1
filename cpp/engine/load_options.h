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
  // If there are several kinds of pooling, their vectors are concatenated. Empty: the pooling that the file names, else the last row in
  // decoders and the mean in encoders.
  std::vector<PoolKind> pooling;
  std::vector<model::ModuleSpec> modules;  // the modules that follow the layers, in order
  // For a causal reranker: its labels are the logits of these ids at the last token.
  std::vector<std::int32_t> score_ids;
  // The task whose adapters (in the model's own file) are merged. Empty if no task is named.
  std::string task;
  std::vector<model::LoraSpec> lora;
};

}  // namespace pumice::engine
