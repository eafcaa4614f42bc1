#include "model/mixture_settings.h"

#include <algorithm>
#include <functional>
#include <string_view>

namespace pumice::model {
namespace {

// Returns config.json's key for the number of experts. A file may have num_experts or num_local_experts even if the family's configuration
// class uses another name.
const char* experts_key(const Reader& read, const MixtureDefaults& defaults) {
  for (const char* key : {defaults.experts_key, "num_experts", "num_local_experts"})
    if (!read.gguf() && read.has("", key)) return key;
  return defaults.experts_key;
}

// Throws if a GGUF file has a setting of mixtures that its family does not have. llama.cpp accepts most of these keys for any family.
void refuse_other_mixtures(const Reader& read, const MixtureDefaults& defaults) {
  if (!read.gguf()) return;
  struct Key {
    const char* name;
    bool known;        // true: the family has this setting
    std::int64_t off;  // a value that, like 0, means that the setting is not used
    const char* what;
  };
  const DenseDefaults dense = defaults.dense.value_or(DenseDefaults{});
  const Key keys[] = {
      {"expert_group_count", defaults.groups > 0, 1, "groups of experts"},
      {"leading_dense_block_count", !dense.first_key.empty(), 0, "first layers without experts"},
      {"interleave_moe_layer_step", !dense.step_key.empty(), 1, "layers without experts between those that have them"},
      {"moe_every_n_layers", !dense.every_key.empty(), 1, "layers without experts between those that have them"},
  };
  for (const Key& key : keys) {
    if (key.known) continue;
    const std::int64_t said = read.integer(key.name, "").value_or(0);
    if (said != 0 && said != key.off) read.unsupported(read.key(key.name, ""), " is ", said, ": ", key.what, " are not run in this family");
  }
  if (defaults.scale) return;
  const double scale = read.number("expert_weights_scale", "").value_or(0);
  if (scale != 0 && scale != 1)
    read.unsupported(read.key("expert_weights_scale", ""), " is ", scale,
                     ": weights of experts are not multiplied in this family; it must be 1");
}

// Returns the kind of score that the file has. Throws if the family does not have this kind.
RouteScore read_score(const Reader& read, const ScoreDefaults& defaults) {
  const std::string where = read.key("expert_gating_func", defaults.key);
  const auto needs = [&](const auto& said) {
    const std::string softmax = read.gguf() ? "1 (softmax)" : "softmax", sigmoid = read.gguf() ? "2 (sigmoid)" : "sigmoid";
    const std::string needed = defaults.either ? str(softmax, " or ", sigmoid) : defaults.score == RouteScore::sigmoid ? sigmoid : softmax;
    read.unsupported(where, " is ", said, "; ", needed, " is needed");
  };
  std::optional<RouteScore> score;
  if (read.gguf()) {
    // The key has a number of llama.cpp's enum of scores. If it is 0 or missing, the family's default is used.
    const std::int64_t said = read.integer("expert_gating_func", "").value_or(0);
    if (said == 1) score = RouteScore::softmax;
    if (said == 2) score = RouteScore::sigmoid;
    if (said != 0 && (!score || (*score != defaults.score && !defaults.either))) needs(said);
  } else if (const auto said = read.string("", defaults.key)) {
    if (*said == "softmax") score = RouteScore::softmax;
    // dots.llm1 has "noaux_tc" here, the name of a method to choose experts ("without an auxiliary loss", DeepSeek V3). This method uses
    // sigmoids.
    if (*said == "sigmoid" || *said == "noaux_tc") score = RouteScore::sigmoid;
    if (!score || (*score != defaults.score && !defaults.either)) needs(str('"', *said, '"'));
  }
  if (score.value_or(defaults.score) == RouteScore::sigmoid) read.gguf_says("expert_gating_func", std::int64_t{2});
  return score.value_or(defaults.score);
}

// Returns how many experts are chosen per row. Some files have a list with one number per layer. Throws if the numbers of such a list
// differ.
std::int32_t read_chosen(const Reader& read, const Config& c, std::int32_t experts, const MixtureDefaults& defaults) {
  const std::string where = read.key("expert_used_count", defaults.chosen_key);
  const std::int64_t most = std::min(kMaxChosen, experts);
  const auto list = read.per_layer("expert_used_count", defaults.chosen_key, c.layers.size(), 1, most);
  if (list.empty() && (read.gguf() || defaults.chosen == 0)) read.missing(where);
  if (std::ranges::adjacent_find(list, std::not_equal_to()) != list.end())
    read.unsupported(where, " differs between layers; the same number in all layers is needed");
  const std::int64_t chosen = read.in_range(list.empty() ? defaults.chosen : list.front(), 1, most, where);
  read.gguf_says("expert_used_count", chosen);
  return static_cast<std::int32_t>(chosen);
}

// Reads how many groups the experts form, and in how many of these groups experts can be chosen for a row (Route in core/ops.h). Throws if
// Route cannot use these numbers.
void read_groups(const Reader& read, Router& router, const MixtureDefaults& defaults) {
  if (defaults.groups == 0) return;
  const bool silent = read.gguf();
  router.groups = read.size("expert_group_count", "n_group", kMaxExperts, silent ? 1 : defaults.groups);
  router.kept = read.size("expert_group_used_count", "topk_group", kMaxExperts, silent ? 1 : defaults.kept);
  if (router.groups == 1 && !read.has("", "n_group")) read.gguf_lacks({"expert_group_count", "expert_group_used_count"});
  const std::string groups = read.key("expert_group_count", "n_group"), kept = read.key("expert_group_used_count", "topk_group");
  if (router.kept > router.groups)
    read.unsupported(kept, " is ", router.kept, "; it must not be above ", router.groups, ", the number of groups (", groups, ")");
  if (router.groups == 1) {
    router.kept = 1;
    return;
  }
  const std::int32_t each = router.experts / router.groups;
  if (router.experts % router.groups != 0 || each < 2)
    read.unsupported(groups, " is ", router.groups, " for ", router.experts, " experts: groups must be equal, of two experts or more");
  if (router.chosen > router.kept * each)
    read.unsupported(kept, " is ", router.kept, ": ", router.chosen, " experts are chosen (",
                     read.key("expert_used_count", defaults.chosen_key), "), and ", router.kept, " of ", router.groups, " groups (", groups,
                     ") must have as many, with ", each, " in each");
}

// Returns the number that multiplies the weights of chosen experts. In GGUF files 0 means 1.
float read_scale(const Reader& read, const MixtureDefaults& defaults) {
  if (!defaults.scale) return 1;
  const double said = read.number("expert_weights_scale", defaults.scale_key).value_or(read.gguf() ? 1 : *defaults.scale);
  if (read.gguf() && said == 0) return 1;
  read.gguf_says("expert_weights_scale", said);
  if (!(said > 0 && said < 1e30)) read.bad_number(read.key("expert_weights_scale", defaults.scale_key), said, "a positive number");
  return static_cast<float>(said);
}

// Returns the limit of the router's logits, or 0 if there is none.
float read_softcap(const Reader& read, const MixtureDefaults& defaults) {
  if (defaults.softcap_key.empty()) return 0;
  const double cap = read.number("router_logit_softcapping", defaults.softcap_key).value_or(0);
  if (!(cap >= 0 && cap < 1e30))
    read.bad_number(read.key("router_logit_softcapping", defaults.softcap_key), cap, "0 (none) or a positive number");
  return static_cast<float>(cap);
}

// Returns a layer's shared experts as one network, or nothing if there are none.
std::optional<SharedExpert> read_shared(const Reader& read, const Mixture& mixture, const SharedDefaults& defaults) {
  const auto one = [&](std::int64_t width, const std::string& where) {
    return shared_expert(mixture, static_cast<std::int32_t>(read.in_range(width, 1, kMaxWidth * 4, where)));
  };
  if (read.integer("expert_shared_feed_forward_length", defaults.width_key).value_or(0) != 0 ||
      (!read.gguf() && !defaults.width_key.empty()))
    return one(read.size("expert_shared_feed_forward_length", defaults.width_key, kMaxWidth * 4,
                         defaults.width > 0 ? std::optional<std::int64_t>(defaults.width) : std::nullopt),
               read.key("expert_shared_feed_forward_length", defaults.width_key));
  const std::string where = read.key("expert_shared_count", defaults.key);
  const std::int64_t silent = read.gguf() ? 0 : defaults.count;
  const std::int64_t count = read.in_range(read.integer("expert_shared_count", defaults.key).value_or(silent), 0, kMaxExperts, where);
  if (count > 0) read.gguf_says("expert_shared_count", count);
  return count == 0 ? std::nullopt : std::optional(one(count * mixture.width, where));
}

}  // namespace

Mixture read_mixture(const Reader& read, const Config& c, const MixtureDefaults& defaults) {
  const RouteScore score = read_score(read, defaults.score);
  refuse_other_mixtures(read, defaults);
  const auto first = std::ranges::find_if(c.layers, [](const Layer& layer) { return layer.if_feed_forward() != nullptr; });
  const FeedForward network = first == c.layers.end() ? FeedForward{} : first->feed_forward();
  Mixture x{.gated = network.gated, .activation = network.activation};
  Router& router = x.router;
  router.experts = read.size_in_gguf("expert_count", experts_key(read, defaults), kMaxExperts, defaults.experts);
  router.chosen = read_chosen(read, c, router.experts, defaults);
  // Some GGUF files have the experts' width only in feed_forward_length, so for GGUF files the network's width is the default.
  const std::int32_t silent = read.gguf() || defaults.width == 0 ? network.width : defaults.width;
  x.width = read.size("expert_feed_forward_length", defaults.width_key, kMaxWidth, silent);
  read.gguf_says("expert_feed_forward_length", std::int64_t{x.width});
  if (defaults.normalised)
    router.normalised =
        read.flag("expert_weights_norm", defaults.normalised_key, read.gguf() ? defaults.gguf_normalised : *defaults.normalised);
  router.score = score;
  router.softcap = read_softcap(read, defaults);
  router.choice_bias = defaults.choice_bias;
  read_groups(read, router, defaults);
  router.scale = read_scale(read, defaults);
  router.floor = router.normalised ? defaults.floor : 0;
  if (defaults.shared) x.shared = read_shared(read, x, *defaults.shared);
  return x;
}

SharedExpert shared_expert(const Mixture& mixture, std::int32_t width) {
  return {.network = {.width = width, .gated = mixture.gated, .activation = mixture.activation}};
}

std::vector<bool> read_dense_layers(const Reader& read, const Config& c, const DenseDefaults& defaults) {
  const auto count = static_cast<std::int64_t>(c.layers.size());
  std::int64_t first = 0, step = 1;
  std::optional<std::int64_t> every;
  if (!defaults.first_key.empty()) {
    const std::string where = read.key("leading_dense_block_count", defaults.first_key);
    const std::int64_t silent = read.gguf() ? 0 : defaults.first;
    first = read.in_range(read.integer("leading_dense_block_count", defaults.first_key).value_or(silent), 0, kMaxLayers, where);
  }
  if (!defaults.step_key.empty()) step = read.size("interleave_moe_layer_step", defaults.step_key, kMaxLayers, 1);
  if (!defaults.every_key.empty()) {
    const std::string where = read.key("moe_every_n_layers", defaults.every_key);
    const auto said = read.integer("moe_every_n_layers", defaults.every_key);
    if (read.gguf() && !said) read.missing(where);
    every = read.in_range(said.value_or(0), read.gguf() ? 1 : 0, kMaxLayers, where);
  }
  const auto types = read.gguf() || defaults.types_key.empty() ? std::nullopt : read.file().strings(read.key("", defaults.types_key));
  if (types && static_cast<std::int64_t>(types->size()) != count)
    read.unsupported(defaults.types_key, " has ", types->size(), " entries for ", count, " layers; one for each layer is needed");
  std::vector<bool> dense;
  for (std::int64_t i = 0; i < count; ++i) {
    dense.push_back(i < first || (i + 1) % step != 0 || (every && (*every == 0 || i % *every != 1)));
    if (!types) continue;
    const std::string& type = (*types)[static_cast<std::size_t>(i)];
    if (type != "dense" && type != "sparse")
      read.unsupported(defaults.types_key, ": layer type \"", type, "\" is not known; there are dense and sparse");
    dense.back() = type == "dense";
  }
  if (!defaults.first_key.empty())
    read.gguf_says("leading_dense_block_count", types ? static_cast<std::int64_t>(std::ranges::find(dense, false) - dense.begin()) : first);
  return dense;
}

SharedExpert read_opened_expert(const Reader& read, const Mixture& mixture, std::int32_t width) {
  SharedExpert shared = shared_expert(
      mixture, read.size_in_gguf("expert_shared_feed_forward_length", "shared_expert_intermediate_size", kMaxWidth * 4, width));
  shared.opened = true;
  return shared;
}

void set_sparse_layers(const Reader& read, Config& c, const Mixture& mixture) {
  if (c.gguf) return set_mixtures(c, mixture, [](std::size_t) { return true; });
  const auto step = static_cast<std::size_t>(read.size("", "decoder_sparse_step", kMaxLayers, 1));
  const auto dense = read.file().integer_list(read.key("", "mlp_only_layers")).value_or(std::vector<std::int64_t>{});
  set_mixtures(c, mixture, [&](std::size_t layer) {
    return (layer + 1) % step == 0 && std::ranges::find(dense, static_cast<std::int64_t>(layer)) == dense.end();
  });
}

void say_shared_width(const Reader& read, const Config& c) {
  const auto found = std::ranges::find_if(c.layers, [](const Layer& layer) { return layer.if_mixture() != nullptr; });
  const Mixture* mixture = found == c.layers.end() ? nullptr : found->if_mixture();
  if (mixture && mixture->shared)
    read.gguf_says("expert_shared_feed_forward_length", std::int64_t{mixture->shared->network.width});
  else
    read.gguf_lacks({"expert_shared_count"});
}

void set_mixtures(Config& c, const Mixture& mixture, const std::function<bool(std::size_t layer)>& has) {
  for (std::size_t i = 0; i < c.layers.size(); ++i)
    if (has(i)) c.layers[i].network = mixture;
}

void read_mixtures(const Reader& read, Config& c, const MixtureDefaults& defaults) {
  // Throws if config.json has a moe_layer_freq other than the number 1. In some families it is a list of 0 and 1, for which integer()
  // throws.
  if (!read.gguf() && read.integer("", "moe_layer_freq").value_or(1) != 1)
    read.unsupported(read.key("", "moe_layer_freq"), " is ", *read.integer("", "moe_layer_freq"),
                     "; 1 (all layers after the dense ones have experts) is needed");
  const std::vector<bool> dense = read_dense_layers(read, c, defaults.dense.value_or(DenseDefaults{}));
  set_mixtures(c, read_mixture(read, c, defaults), [&](std::size_t layer) { return !dense[layer]; });
}

}  // namespace pumice::model
