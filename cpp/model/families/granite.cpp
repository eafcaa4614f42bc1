// Granite 3 and 4, dense (IBM 2024), are a Llama whose embeddings, scores, branches and logits are multiplied by numbers. Granite MoE has
// experts, and in some models a shared expert. In Granite 4 H (2025), most layers have Mamba-2, and the others have attention without rope.
// Its larger models (Tiny, Small) also have experts and a shared expert. Granite SWA ("Swash", 2026) has attention sinks, a window in three
// of four layers, a rope base per layer, and in some models experts.
#include <optional>
#include <vector>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/scan_settings.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::granite {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"granite"}, kTypes[] = {"granite"};
constexpr std::string_view kGgufMoe[] = {"granitemoe"}, kTypesMoe[] = {"granitemoe", "granitemoeshared"};
// If a role has several safetensors names, the first is the name in files on the hub, and the others are names in files that transformers
// writes.
constexpr TensorName kNamesMoe[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.block_sparse_moe.router.layer"},
    {router, "", "layers.{}.block_sparse_moe.router"},
    {expert_gate, "blk.{}.ffn_gate_exps", ""},
    {expert_up, "blk.{}.ffn_up_exps", ""},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.block_sparse_moe.input_linear", Fused::expert_gate_up},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.block_sparse_moe.input_linear", Fused::expert_gate_up},
    {expert_gate, "", "layers.{}.block_sparse_moe.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_up, "", "layers.{}.block_sparse_moe.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.block_sparse_moe.output_linear"},
    {expert_down, "", "layers.{}.block_sparse_moe.experts.down_proj", Fused::no, false, Bare::safetensors},
    {shared_gate, "blk.{}.ffn_gate_shexp", ""},
    {shared_up, "blk.{}.ffn_up_shexp", ""},
    {shared_gate, "", "layers.{}.shared_mlp.input_linear", Fused::shared_gate_up},
    {shared_up, "", "layers.{}.shared_mlp.input_linear", Fused::shared_gate_up},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.shared_mlp.output_linear"},
};

constexpr std::string_view kGgufHybrid[] = {"granitehybrid"}, kTypesHybrid[] = {"granitemoehybrid"};
constexpr TensorName kOwnNamesHybrid[] = {
    {gate, "blk.{}.ffn_gate", ""},
    {gate, "", "layers.{}.shared_mlp.input_linear", Fused::gate_up},
    {up, "blk.{}.ffn_up", ""},
    {up, "", "layers.{}.shared_mlp.input_linear", Fused::gate_up},
    {down, "blk.{}.ffn_down", "layers.{}.shared_mlp.output_linear"},
};
constexpr auto kNamesHybrid = names::joined(names::kMamba2, kOwnNamesHybrid, kNamesMoe);
constexpr KeyName kKeysHybrid[] = {{"intermediate_size", "shared_intermediate_size"}, {"moe_intermediate_size", "intermediate_size"}};
// The names of layer types: the first two in files on the hub, the other two in files that transformers 5 writes.
constexpr TypeName kLayerTypes[] = {
    {"mamba", "mamba"}, {"attention", "attention"}, {"linear_attention", "mamba"}, {"full_attention", "attention"}};

// Reads the multipliers of embeddings, scores and branches, and the divisor of logits, logits_scaling. `logits` is the default of the
// divisor.
void read_multipliers(const Reader& read, Config& c, std::optional<double> logits) {
  c.embedding_scale = static_cast<float>(read.positive("embedding_scale", "embedding_multiplier", 1));
  c.logit_scale = static_cast<float>(1 / read.positive("logit_scale", "logits_scaling", logits));
  for (Layer& layer : c.layers) {
    layer.join.scale = static_cast<float>(read.positive("residual_scale", "residual_multiplier", 1));
    Attention* a = layer.if_attention();
    if (!a) continue;
    // If the key is missing, the scale is 1 for config.json (as in GraniteConfig) and 1 / sqrt(head_dim) for GGUF files (as in llama.cpp).
    const double silent = c.gguf ? a->scale : 1;
    a->scale = static_cast<float>(read.positive("attention.scale", "attention_multiplier", silent));
  }
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_ropes(read, c, {});
  read_multipliers(read, c, c.gguf ? std::nullopt : std::optional(1.0));
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
}

// Makes Mamba-2 the mixer of all layers without attention. If config.json has no layer_types, no layer has attention.
void read_mixers(const Reader& read, Config& c) {
  const std::int32_t expand = c.gguf ? 0 : read.size("", "mamba_expand", kMaxWidth / c.hidden_size, 2);
  const Recurrent ssd = read_ssd(read, c, {.heads = 128, .key_heads = 1, .key_dim = 256, .inner = expand * c.hidden_size});
  const auto types = read_layer_types(read, c.layers.size(), kLayerTypes);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    const bool attends = c.gguf ? c.layers[i].if_attention() != nullptr : !types.empty() && types[i] == "attention";
    if (!attends) c.layers[i].mixer = ssd;
  }
  say_kv_heads(read, c);
}

// Makes the networks of all layers mixtures. `shared` is the width of the shared expert, or 0 if there is none.
void add_experts(const Reader& read, Config& c, const MixtureDefaults& defaults, std::int64_t shared) {
  Mixture mixture = read_mixture(read, c, defaults);
  if (shared > 0) mixture.shared = shared_expert(mixture, static_cast<std::int32_t>(shared));
  set_mixtures(c, mixture, [](std::size_t) { return true; });
  read.gguf_lacks({"expert_feed_forward_length"});  // GGUF files have the width of an expert in feed_forward_length
}

constexpr const char *kSharedGguf = "expert_shared_feed_forward_length", *kShared = "shared_intermediate_size";

// Returns the width of the shared expert, or 0 if there is none.
std::int64_t shared_width(const Reader& read) {
  return read.in_range(read.integer(kSharedGguf, kShared).value_or(0), 0, kMaxWidth * 4, read.key(kSharedGguf, kShared));
}

// Returns true if the file has experts. GGUF files of Granite SWA and of Granite 4 H have the same general.architecture with and without
// experts, so the function looks for the number of experts, and for a router in the first layer.
bool has_experts(const Reader& read) {
  return !read.gguf() || read.integer("expert_count", "").value_or(0) != 0 || read.file().find("blk.0.ffn_gate_inp.weight");
}

// Configures the networks of Granite 4 H. If the model has experts, the networks of all layers become mixtures. In folders, the shared
// expert has the width and the tensor names that the network of a model without experts has. In GGUF files with experts,
// feed_forward_length is the width of an expert.
void read_mixture_or_network(const Reader& read, Config& c) {
  constexpr std::int32_t kSilent = 8;  // the default of GraniteMoeHybridConfig
  const std::string where = read.key("", "num_local_experts");
  if (!has_experts(read) || read.in_range(read.integer("", "num_local_experts").value_or(kSilent), 0, kMaxExperts, where) == 0) return;
  const std::int64_t shared = c.gguf ? shared_width(read) : c.layers.front().feed_forward().width;
  add_experts(read, c, {.experts_key = "num_local_experts", .experts = kSilent, .chosen = 2, .width = 11008}, shared);
  read.gguf_says("feed_forward_length", std::int64_t{c.layers.front().if_mixture()->width});
  read.gguf_says(kSharedGguf, shared);
}

// Records the rope settings that a GGUF file has although no layer has rope, because llama.cpp's converter always writes them.
void say_unused_rope(const Reader& read, const Attention& a) {
  if (!read.notes()) return;
  const double theta = read.number("", "rope_parameters.rope_theta").value_or(read.number("", "rope_theta").value_or(10000));
  read.gguf_says("rope.freq_base", theta);
  read.gguf_says("rope.dimension_count", std::int64_t{a.head_dim});
}

void configure_hybrid(const Reader& read, Config& c) {
  read_sizes(read, c, {.some_attend = true});
  read_mixture_or_network(read, c);
  read_mixers(read, c);
  // In GGUF files of this family, rope.scaling.finetuned says whether layers with attention have rope.
  const bool turned = c.gguf ? read.flag("rope.scaling.finetuned", "", true) : read.string("", "position_embedding_type") == "rope";
  if (turned)
    read_ropes(read, c, {});
  else if (const Attention* a = c.first_attention())
    say_unused_rope(read, *a);
  read.gguf_says("rope.scaling.finetuned", false);
  read_multipliers(read, c, 1.0);
  read_attention_bias(read, c);
}

constexpr std::string_view kSwaGguf[] = {"granite_swa"}, kSwaTypes[] = {"granite_swa"}, kSwaTypesMoe[] = {"granitemoe_swa"};
constexpr TensorName kSwaNames[] = {{sinks, "blk.{}.attn_sinks", "layers.{}.self_attn.sinks", Fused::no, false, Bare::safetensors}};
// GGUF files have gate and up of the shared expert in one tensor, because llama.cpp's converter does not split it.
constexpr TensorName kSwaSharedNames[] = {
    {shared_gate, "blk.{}.ffn_up_shexp", "", Fused::shared_gate_up},
    {shared_up, "blk.{}.ffn_up_shexp", "", Fused::shared_gate_up},
};
constexpr TensorName kSwaExpertNames[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.block_sparse_moe.router"},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.block_sparse_moe.experts.gate_up_proj", Fused::expert_gate_up, false,
     Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.block_sparse_moe.experts.gate_up_proj", Fused::expert_gate_up, false,
     Bare::safetensors},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.block_sparse_moe.experts.down_proj", Fused::no, false, Bare::safetensors},
};
constexpr auto kSwaNamesMoe = names::joined(kSwaNames, kSwaSharedNames, kSwaExpertNames, kNamesMoe);

// Returns the base of each layer's rope, or 0 for a layer without rope. config.json has one base for all layers or a list of bases. A GGUF
// file has one base, and may have a list of flags that say which layers have rope.
std::vector<double> read_bases(const Reader& read, const Config& c) {
  const std::size_t count = c.layers.size();
  const double one = read.positive("rope.freq_base", "rope_parameters.rope_theta", read.positive("", "rope_theta", 10000));
  std::vector<double> bases(count, one);
  const std::string where = read.key("attention.rope_pattern", "layer_rope_theta");
  const files::Value* said = read.file().value(where);
  const auto check = [&](std::size_t found) {
    if (found != count) read.unsupported(where, " has ", found, " entries for ", count, " layers; one for each layer is needed");
  };
  if (const auto* flags = said ? std::get_if<std::vector<bool>>(said) : nullptr; flags && c.gguf) {
    check(flags->size());
    for (std::size_t i = 0; i < count; ++i) bases[i] = (*flags)[i] ? one : 0;
  } else if (said && !std::holds_alternative<std::monostate>(*said)) {
    bases = read.file().number_list(where).value_or(std::vector<double>{});
    check(bases.size());
    for (const double base : bases) {
      if (!(base >= 0 && base < 1e30)) read.bad_number(where, base, "0 (no rope) or a positive number below 1e30");
    }
  } else if (!c.gguf && read.has("", "no_rope_layers")) {
    read.unsupported(read.key("", "no_rope_layers"), " without layer_rope_theta is not run for granite_swa");
  }
  return bases;
}

void read_swa(const Reader& read, Config& c, const SizeDefaults& defaults) {
  read_sizes(read, c, defaults);
  read_windows(read, c, {.window = 128, .full_every = 4, .full_first = true, .gguf = GgufWindows::by_layer});
  read_layer_ropes(read, c, {}, read_bases(read, c));
  read_attention_bias(read, c);
  read_multipliers(read, c, c.gguf ? std::nullopt : std::optional(1.0));
  for (Layer& layer : c.layers) layer.attention().sinks = true;
}

void configure_swa(const Reader& read, Config& c) {
  read_swa(read, c, {.kv_heads = 4, .n_ctx = 8192, .eps = 1e-5});
  read_mlp_bias(read, c);
}

void add_all_experts(const Reader& read, Config& c) {
  add_experts(read, c, {.experts_key = "num_local_experts", .width_key = "", .experts = 8, .chosen = 2}, shared_width(read));
}

void configure_moe(const Reader& read, Config& c) {
  configure(read, c);
  add_all_experts(read, c);
}

void configure_swa_moe(const Reader& read, Config& c) {
  read_swa(read, c, {});
  add_all_experts(read, c);
}

}  // namespace

const Family granite_moe{.name = "granite_moe",
                         .gguf_names = kGgufMoe,
                         .model_types = kTypesMoe,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNamesMoe,
                         .more_names = names::kLlama,
                         .configure = configure_moe,
                         .pairs_in_gguf = true};

const Family granite{.name = "granite",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure,
                     .pairs_in_gguf = true};

const Family granite_hybrid{.name = "granite_hybrid",
                            .gguf_names = kGgufHybrid,
                            .model_types = kTypesHybrid,
                            .prefixes = names::kDecoderPrefixes,
                            .names = kNamesHybrid,
                            .more_names = names::kLlama,
                            .keys = kKeysHybrid,
                            .configure = configure_hybrid,
                            .pairs_in_gguf = true};

const Family granite_swa{.name = "granite_swa",
                         .gguf_names = kSwaGguf,
                         .model_types = kSwaTypes,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kSwaNames,
                         .more_names = names::kLlama,
                         .configure = configure_swa,
                         .pairs_in_gguf = true};

const Family granite_moe_swa{.name = "granite_moe_swa",
                             .gguf_names = kSwaGguf,
                             .model_types = kSwaTypesMoe,
                             .prefixes = names::kDecoderPrefixes,
                             .names = kSwaNamesMoe,
                             .more_names = names::kLlama,
                             .configure = configure_swa_moe,
                             .claims = has_experts,
                             .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::granite
