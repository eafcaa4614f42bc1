// The options of pumice.load() and pumice.plan().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "model/modules.h"

namespace pumice::engine {

inline constexpr std::int64_t kAllLayers = -1;

// The fields are named as in pumice.load(). An empty optional means that the value is chosen automatically.
struct LoadOptions {
  std::string device = "auto";
  std::optional<std::int64_t> gpu_layers;  // number of layers on all GPUs together; kAllLayers means all layers of the model
  // The number of layers on each GPU, in the order in which `device` names the GPUs. If this is not empty, gpu_layers is not used.
  std::vector<std::int64_t> gpu_layers_each;
  // Number of layers whose experts are on the GPU, counted from the last layer. kAllLayers means all layers that are on the GPU.
  std::optional<std::int64_t> gpu_experts;
  std::optional<Format> quantize;
  std::optional<std::int64_t> n_ctx;
  KvFormat kv_format = KvFormat::f16;
  std::optional<std::uint64_t> kv_budget;  // maximum bytes of keys, values and states of all sequences and cached prefixes
  // Maximum bytes of packed experts in memory on the CPU. Other experts are read from the file when the router chooses them. If this is
  // empty, all experts are in memory if they fit, otherwise as many as fit.
  std::optional<std::uint64_t> expert_cache;
  Compute compute = Compute::automatic;
  int threads = 0;
  // How the rows of a text are pooled. If there are several kinds of pooling, their vectors are concatenated. If this is empty, the file
  // decides. If the file names no pooling either, decoders take the last row and encoders the mean of the rows.
  std::vector<PoolKind> pooling;
  std::vector<model::ModuleSpec> modules;         // the modules that follow the layers, in order; if empty, the file's modules are used
  model::MlmUse mlm_head = model::MlmUse::maybe;  // whether an encoder's MLM head, which computes sparse vectors, is loaded
  // Ids that turn a decoder into a reranker. Its labels are the logits of these ids after a text's last token. Empty for other models.
  std::vector<std::int32_t> score_ids;
  // The task whose adapters are merged into the weights (model/adapters.h). The adapters are in the model's own file. Empty if no task is
  // named.
  std::string task;
  std::vector<model::LoraSpec> lora;
  std::shared_ptr<const files::ModelFile> assistant;  // the file of the model's assistant (model/assistant.h), or null
  bool sketch = true;         // whether a CPU makes a sketch of the output head if that makes decoding faster (cpu/sketch.h)
  bool mtp = true;            // whether the model's draft head is loaded, if the file has one (model::Config::draft)
  bool allow_unread = false;  // true if the file may have layers that the model does not use; otherwise they are an error

  // Returns the number of layers on all GPUs together, as gpu_layers or gpu_layers_each requests it. kAllLayers means all layers.
  std::optional<std::int64_t> asked_layers() const;
  std::string layers_text() const;  // returns gpu_layers or gpu_layers_each as written in Python: "all", 3 or [2, 1]
};

}  // namespace pumice::engine
