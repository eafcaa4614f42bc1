// What pumice.load() and pumice.plan() are asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/modules.h"

namespace pumice::engine {

inline constexpr std::int64_t kAllLayers = -1;

// As pumice.load() takes them. Empty optionals are automatic.
struct LoadOptions {
  std::string device = "auto";
  std::optional<std::int64_t> gpu_layers;  // kAllLayers: all
  std::optional<Format> quantize;
  std::optional<std::int64_t> n_ctx;
  KvFormat kv_format = KvFormat::f16;
  std::optional<std::uint64_t> kv_budget;  // bytes
  Compute compute = Compute::automatic;
  int threads = 0;
  std::vector<PoolKind> pooling;           // side by side; empty: what the file says, else last of decoders and mean
  std::vector<model::ModuleSpec> modules;  // behind the layers, in order
  std::vector<std::int32_t> score_ids;     // a causal reranker: ids whose logits at the last token are its labels
  std::string task;                        // whose adapters are merged; empty: not said
  std::vector<model::LoraSpec> lora;
};

}  // namespace pumice::engine
