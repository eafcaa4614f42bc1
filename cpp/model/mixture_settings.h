// Reads the settings of mixtures of experts (Mixture in model/layer.h).
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/reader.h"

namespace pumice::model {

// Says which layers of a family have a feed-forward network in place of experts. The fields have config.json's keys and their defaults. An
// empty key means that the family has no such setting. A GGUF file that has the setting nevertheless is refused. If all keys are empty, all
// layers have experts.
struct DenseDefaults {
  std::string_view first_key;  // key for the number of dense layers before the first layer with experts (GGUF: leading_dense_block_count)
  std::int32_t first = 0;      // default of `first_key` in config.json
  // Key for a number n. After the first layers, layer i, counted from 1, has experts if i is a multiple of n (GGUF:
  // interleave_moe_layer_step).
  std::string_view step_key;
  // Key for a number n. After the first layers, layer i, counted from 0, has experts if i % n is 1 (GGUF: moe_every_n_layers). If n is 0 or
  // the key is missing, no layer has experts.
  std::string_view every_key;
  // Key for a list that has "dense" or "sparse" for each layer. If config.json has this key, the other keys are ignored.
  std::string_view types_key;
};

// The settings of a family's shared experts. All shared experts of a layer run as one network, for every row. config.json has the width of
// this network at `width_key`. If `width_key` is empty, the width is the number of shared experts times the width of an expert. A GGUF
// file has expert_shared_feed_forward_length or expert_shared_count. If it has neither key, there is no shared expert.
struct SharedDefaults {
  std::string_view key = "n_shared_experts";  // config.json's key for the number of shared experts
  std::int32_t count = 0;                     // number of shared experts if config.json does not have `key`
  std::string_view width_key;
  std::int32_t width = 0;  // the width if config.json does not have `width_key`; 0: config.json must have it
};

// Says how a family computes scores of experts. config.json has the kind of score at `key`, and GGUF files have it in expert_gating_func.
struct ScoreDefaults {
  std::string_view key = "scoring_func";
  RouteScore score = RouteScore::softmax;  // the kind of score if the file has no such key
  bool either = false;                     // true: files may have any kind of score; false: they may have only `score`
};

// The keys and defaults of a family's configuration class. The defaults apply only to config.json, so GGUF files must say how many experts
// there are and how many are chosen. Files with settings that their family does not have are refused.
struct MixtureDefaults {
  const char* experts_key = "num_experts";
  std::string_view chosen_key = "num_experts_per_tok";
  const char* width_key = "moe_intermediate_size";  // config.json's key for the number of hidden columns of an expert
  std::int32_t experts = 0, chosen = 0;
  std::int32_t width = 0;  // default of `width_key`; 0: the default is the width of the layer's network (read_sizes())
  // Whether the weights of the chosen experts are divided by their sum. config.json has this setting at `normalised_key`, with the default
  // `normalised`. GGUF files have it in expert_weights_norm, with the default `gguf_normalised`. If `normalised` is empty, the family has
  // no such setting, and the weights are divided.
  std::string_view normalised_key = "norm_topk_prob";
  std::optional<bool> normalised;
  bool gguf_normalised = true;
  ScoreDefaults score;
  // config.json's key for the limit of the router's logits (GGUF: router_logit_softcapping). If the key is missing or its value is 0, there
  // is no limit. If `softcap_key` is empty, the family has no such setting.
  std::string_view softcap_key;
  bool choice_bias = false;  // true: a number per expert is added to the scores, but only to choose experts (Router::choice_bias)
  // Defaults of config.json's n_group, the number of groups of experts, and topk_group, the number of groups that are kept for a row. If
  // `groups` is 0, the family has no groups. In a GGUF file without expert_group_count and expert_group_used_count there is one group.
  std::int32_t groups = 0, kept = 1;
  std::string_view scale_key = "routed_scaling_factor";
  // Default of `scale_key`, a number that multiplies the weights of the chosen experts. If `scale` is empty, the family has no such
  // setting. GGUF files have the number in expert_weights_scale, where 0 or a missing key means 1.
  std::optional<double> scale;
  float floor = 0;  // number that is added to the sum by which weights are divided (Route::floor); not a setting of files
  std::optional<SharedDefaults> shared;
  std::optional<DenseDefaults> dense;
};

// Reads the mixture of a layer. The experts have the gating and the activation of the first layer with a feed-forward network. Throws
// ErrorKind::model_format for numbers out of range.
Mixture read_mixture(const Reader& read, const Config& c, const MixtureDefaults& defaults);

// Returns a shared expert with the gating and the activation of the experts of `mixture`, and with `width` hidden columns.
SharedExpert shared_expert(const Mixture& mixture, std::int32_t width);

// Returns one flag per layer: true if the layer has a feed-forward network in place of experts.
std::vector<bool> read_dense_layers(const Reader& read, const Config& c, const DenseDefaults& defaults);

// Returns a shared expert whose hidden values are multiplied by a sigmoid (SharedExpert::opened). `width` is the default of
// shared_expert_intermediate_size.
SharedExpert read_opened_expert(const Reader& read, const Mixture& mixture, std::int32_t width);

// Sets `mixture` as the network of each layer with experts (Qwen's MoE models). In GGUF files all layers have experts. In config.json,
// layer i, counted from 0, has experts if i + 1 is a multiple of decoder_sparse_step and mlp_only_layers does not list i.
void set_sparse_layers(const Reader& read, Config& c, const Mixture& mixture);

// Adds the width of the shared expert to the Reader's notes, for families whose GGUF files have this width and the number of shared
// experts. If there is no shared expert, removes the number from the notes, because the GGUF file then has neither of these keys.
void say_shared_width(const Reader& read, const Config& c);

// Sets `mixture` as the network of each layer for which has() returns true.
void set_mixtures(Config& c, const Mixture& mixture, const std::function<bool(std::size_t layer)>& has);
// Reads a mixture, and sets it as the network of each layer that has experts according to defaults.dense.
void read_mixtures(const Reader& read, Config& c, const MixtureDefaults& defaults);

}  // namespace pumice::model
