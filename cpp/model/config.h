// One view of a model's hyperparameters, whichever file they come from. Every number is in range when read_config() returns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/program.h"
#include "model/architecture.h"

namespace pumice::files {
class ModelFile;
}

namespace pumice::model {

struct Layer {
  std::int32_t window = 0;  // last positions seen; 0: all
  std::int32_t rope = 0;    // index into Config::ropes
};

struct Config {
  const Architecture* architecture = nullptr;
  bool gguf = false;
  std::int32_t hidden_size = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_size = 0;
  std::int64_t n_ctx = 0;  // positions the model was trained for
  float eps = 0;
  Activation activation = Activation::none;
  float attention_scale = 0, attention_softcap = 0, embedding_scale = 1;
  std::vector<Layer> layers;
  std::vector<RopeTable> ropes;  // none for encoders with learned positions
  std::optional<PoolKind> pooling;  // when the file says
};

// Throws unsupported_model for families and features that are not run, model_format for numbers that make no sense.
Config read_config(const files::ModelFile& file);

PoolKind pooling_from_name(const std::string& name);
std::string_view name(PoolKind kind);

}  // namespace pumice::model
