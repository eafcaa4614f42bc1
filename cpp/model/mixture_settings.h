// Reads the settings of mixtures of experts (Mixture in model/layer.h).
#pragma once

#include <functional>
#include <optional>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// The keys and defaults of a family's configuration class. Defaults hold for config.json; GGUF files must have the numbers of experts.
struct MixtureDefaults {
  const char* experts_key = "num_experts";
  const char* width_key = "moe_intermediate_size";  // the hidden width of an expert
  std::int32_t experts = 0, chosen = 0;
  std::int32_t width = 0;  // 0: the width that read_sizes() read
  // Whether the weights of the chosen experts are divided by their sum: if config.json does not have norm_topk_prob, and if a GGUF file
  // does not have expert_weights_norm. If `normalised` is empty, the family has no such keys, and the weights are divided.
  std::optional<bool> normalised;
  bool gguf_normalised = true;
};

// Returns the mixture of a layer. The experts have the activation of the networks that read_sizes() gave to the layers. Throws
// ErrorKind::model_format for numbers out of range.
Mixture read_mixture(const Reader& read, const Config& c, const MixtureDefaults& defaults);

// Returns a shared expert like the experts of `mixture`, but `width` wide.
SharedExpert shared_expert(const Mixture& mixture, std::int32_t width);

// Gives `mixture` to each layer for whose number has() returns true.
void set_mixtures(Config& c, const Mixture& mixture, const std::function<bool(std::size_t layer)>& has);

}  // namespace pumice::model
