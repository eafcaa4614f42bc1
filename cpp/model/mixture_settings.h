// Reads the settings of mixtures of experts (Mixture in model/layer.h).
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// Which layers of a family have a feed-forward network in place of experts. config.json's keys are given here. An empty key means that the
// family has no such setting; a GGUF file that has the setting all the same is refused. If all keys are empty, all layers have experts.
struct DenseDefaults {
  std::string_view first_key;  // the number of first layers without experts (GGUF: leading_dense_block_count)
  std::int32_t first = 0;      // this number if config.json does not have it
  // n: of the other layers, those whose number, counted from 1, is a multiple of n have experts (GGUF: interleave_moe_layer_step).
  std::string_view step_key;
  // n: of the other layers, those whose number, counted from 0, is 1 above a multiple of n have experts (GGUF: moe_every_n_layers). 0 or a
  // missing key: no layer has experts.
  std::string_view every_key;
  // A list with "dense" or "sparse" for each layer. If config.json has it, the other keys do not count.
  std::string_view types_key;
};

// A family's shared experts: networks beside the experts that take every row. All of them together are one network. Its width in
// config.json is at `width_key` or, if that is empty, is their number times the experts' width. A GGUF file has
// expert_shared_feed_forward_length or expert_shared_count, and none of them means that there is no shared expert.
struct SharedDefaults {
  std::string_view key = "n_shared_experts";  // config.json's key for their number
  std::int32_t count = 0;                     // their number if config.json does not have it
  std::string_view width_key;
  std::int32_t width = 0;  // the width if config.json does not have `width_key`; 0: it must have it
};

// The scores of experts that the files of a family may ask for: config.json under `key`, GGUF files in expert_gating_func.
struct ScoreDefaults {
  std::string_view key = "scoring_func";
  RouteScore score = RouteScore::softmax;  // if the file does not say it
  bool either = false;                     // files may ask for any score; if false, only for `score`
};

// The keys and defaults of a family's configuration class. Defaults hold for config.json; GGUF files must have the numbers of experts. A
// file that asks for something that its family does not have is refused.
struct MixtureDefaults {
  const char* experts_key = "num_experts";
  std::string_view chosen_key = "num_experts_per_tok";
  const char* width_key = "moe_intermediate_size";  // the hidden width of an expert
  std::int32_t experts = 0, chosen = 0;
  std::int32_t width = 0;  // 0: the width that read_sizes() read
  // Whether the weights of the chosen experts are divided by their sum: if config.json does not have `normalised_key`, and if a GGUF file
  // does not have expert_weights_norm. If `normalised` is empty, the family has no such keys, and the weights are divided.
  std::string_view normalised_key = "norm_topk_prob";
  std::optional<bool> normalised;
  bool gguf_normalised = true;
  ScoreDefaults score;
  // config.json's key for the limit of the router's product (GGUF: router_logit_softcapping). 0 or a missing key: no limit. If empty, the
  // family has no such limit.
  std::string_view softcap_key;
  bool choice_bias = false;  // as in Router
  // The number of groups of experts, and how many of them are kept, if config.json does not have n_group and topk_group (GGUF:
  // expert_group_count, expert_group_used_count; if these are missing, there is one group). `groups` 0: the family has no groups.
  std::int32_t groups = 0, kept = 1;
  std::string_view scale_key = "routed_scaling_factor";
  // Multiplies the weights of the chosen experts, if config.json does not have `scale_key` (GGUF: expert_weights_scale; if it is missing or
  // 0, the scale is 1). If empty, the family has no scale.
  std::optional<double> scale;
  float floor = 0;  // as in Route; the original's constant
  std::optional<SharedDefaults> shared;
  std::optional<DenseDefaults> dense;
};

// Returns the mixture of a layer. The experts are like the feed-forward network of the first layer that has one. Throws
// ErrorKind::model_format for numbers out of range.
Mixture read_mixture(const Reader& read, const Config& c, const MixtureDefaults& defaults);

// Returns a shared expert like the experts of `mixture`, but `width` wide.
SharedExpert shared_expert(const Mixture& mixture, std::int32_t width);

// Returns for each layer whether it has a feed-forward network in place of experts.
std::vector<bool> read_dense_layers(const Reader& read, const Config& c, const DenseDefaults& defaults);

// Returns a shared expert that a sigmoid opens (SharedExpert::opened). `width` is the default of shared_expert_intermediate_size.
SharedExpert read_opened_expert(const Reader& read, const Mixture& mixture, std::int32_t width);

// Gives `mixture` to the layers that have experts in Qwen's MoE models: those whose number, counted from 1, is a multiple of
// decoder_sparse_step, and which mlp_only_layers does not list (counted from 0). In GGUF files all layers have experts.
void set_sparse_layers(const Reader& read, Config& c, const Mixture& mixture);

// Notes the width of the shared expert for GGUF files that have it beside the number of shared experts. Without a shared expert they have
// neither.
void say_shared_width(const Reader& read, const Config& c);

// Gives `mixture` to each layer for whose number has() returns true.
void set_mixtures(Config& c, const Mixture& mixture, const std::function<bool(std::size_t layer)>& has);
// Reads a mixture, and gives it to each layer that has experts according to defaults.dense.
void read_mixtures(const Reader& read, Config& c, const MixtureDefaults& defaults);

}  // namespace pumice::model
