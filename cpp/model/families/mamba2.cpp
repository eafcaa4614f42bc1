// In Mamba-2 (Dao and Gu 2024), each layer is a state space model, without attention and without a network. In Nemotron-H (NVIDIA 2025),
// each layer is a single branch: Mamba-2, attention without rope, or a network with squared relu. Nemotron 3 Nano (2025) has mixtures of
// experts in place of networks, with a shared expert and without gates.
#include <algorithm>
#include <optional>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/scan_settings.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mamba2 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"mamba2"}, kTypes[] = {"mamba2"}, kGgufHybrid[] = {"nemotron_h", "nemotron_h_moe"},
                           kTypesHybrid[] = {"nemotron_h"};
constexpr std::string_view kPrefixes[] = {"backbone.", "model.", ""};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embeddings"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.norm"},
    {q, "blk.{}.attn_q", "layers.{}.mixer.q_proj"},
    {k, "blk.{}.attn_k", "layers.{}.mixer.k_proj"},
    {v, "blk.{}.attn_v", "layers.{}.mixer.v_proj"},
    {attn_out, "blk.{}.attn_output", "layers.{}.mixer.o_proj"},
    {scan_gate, "blk.{}.ssm_in", "layers.{}.mixer.in_proj", Fused::scan_parts},
    {scan_v, "blk.{}.ssm_in", "layers.{}.mixer.in_proj", Fused::scan_parts},
    {scan_k, "blk.{}.ssm_in", "layers.{}.mixer.in_proj", Fused::scan_parts},
    {scan_q, "blk.{}.ssm_in", "layers.{}.mixer.in_proj", Fused::scan_parts},
    {scan_step, "blk.{}.ssm_in", "layers.{}.mixer.in_proj", Fused::scan_parts},
    {scan_v_taps, "blk.{}.ssm_conv1d", "layers.{}.mixer.conv1d", Fused::taps_vkq},
    {scan_k_taps, "blk.{}.ssm_conv1d", "layers.{}.mixer.conv1d", Fused::taps_vkq},
    {scan_q_taps, "blk.{}.ssm_conv1d", "layers.{}.mixer.conv1d", Fused::taps_vkq},
    {scan_step_bias, "blk.{}.ssm_dt.bias", "layers.{}.mixer.dt_bias", Fused::no, false, Bare::both},
    {scan_rate, "blk.{}.ssm_a", "layers.{}.mixer.A_log", Fused::no, false, Bare::both},
    {scan_skip, "blk.{}.ssm_d", "layers.{}.mixer.D", Fused::no, false, Bare::both},
    {scan_norm, "blk.{}.ssm_norm", "layers.{}.mixer.norm"},
    {scan_out, "blk.{}.ssm_out", "layers.{}.mixer.out_proj"},
    {ffn_norm, "blk.{}.attn_norm", "layers.{}.norm"},
    {up, "blk.{}.ffn_up", "layers.{}.mixer.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.mixer.down_proj"},
    {router, "blk.{}.ffn_gate_inp", "layers.{}.mixer.gate"},
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.mixer.gate.e_score_correction_bias", Fused::no, false, Bare::both},
    {expert_up, "blk.{}.ffn_up_exps", "layers.{}.mixer.experts.{expert}.up_proj"},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.mixer.experts.{expert}.down_proj"},
    {expert_up, "", "layers.{}.mixer.experts.up_proj", Fused::no, false, Bare::safetensors},
    {expert_down, "", "layers.{}.mixer.experts.down_proj", Fused::no, false, Bare::safetensors},
    {shared_up, "blk.{}.ffn_up_shexp", "layers.{}.mixer.shared_experts.up_proj"},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.mixer.shared_experts.down_proj"},
    {final_norm, "output_norm", "norm_f"},
    {head, "output", "lm_head"},
};
constexpr KeyName kKeys[] = {{"rms_norm_eps", "layer_norm_epsilon"}, {"mamba_n_heads", "num_heads"}, {"mamba_n_groups", "n_groups"},
                             {"mamba_d_state", "state_size"},        {"mamba_d_head", "head_dim"},   {"mamba_d_conv", "conv_kernel"},
                             {"mamba_conv_bias", "use_conv_bias"},   {"mamba_proj_bias", "use_bias"}};

// The context length that llama.cpp's converter writes. The model itself has no limit.
constexpr std::int64_t kContext = std::int64_t{1} << 20;

void configure(const Reader& read, Config& c) {
  read_body(read, c, {.n_ctx = kContext, .eps = 1e-5});
  const Recurrent ssd = read_ssd(read, c, {.heads = 128, .key_heads = 8, .key_dim = 128, .value_dim = 64});
  for (Layer& layer : c.layers) layer.mixer = ssd;
  for (const char* key : {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) read.gguf_says(key, std::int64_t{0});
  // llama.cpp's converter takes the heads of Mamba-2 for attention heads, and writes head_dim if heads * head_dim is not hidden_size.
  if (ssd.value_width() != c.hidden_size)
    for (const char* key : {"attention.key_length", "attention.value_length"}) read.gguf_says(key, std::int64_t{ssd.value_dim});
}

constexpr KeyName kKeysHybrid[] = {
    {"rms_norm_eps", "layer_norm_epsilon"}, {"mamba_n_heads", "mamba_num_heads"}, {"mamba_n_groups", "n_groups"},
    {"mamba_d_state", "ssm_state_size"},    {"mamba_d_head", "mamba_head_dim"},   {"mamba_d_conv", "conv_kernel"},
    {"mamba_conv_bias", "use_conv_bias"},   {"mamba_proj_bias", "use_bias"},      {"hidden_act", "mamba_hidden_act"}};
constexpr TypeName kLayerTypes[] = {{"linear_attention", "mamba"}, {"mamba", "mamba"}, {"full_attention", "attention"},
                                    {"attention", "attention"},    {"mlp", "mlp"},     {"moe", "moe"}};

// Returns the kind of each layer's single branch. config.json has a list of names, or a text with one letter per layer.
std::vector<std::string_view> read_branches(const Reader& read, std::size_t count) {
  for (const char* key : {"layers_block_type", "layer_types"}) {
    auto types = read_layer_types(read, count, kLayerTypes, key);
    if (!types.empty()) return types;
  }
  const std::string where = read.key("", "hybrid_override_pattern"), letters = read.text(where);
  if (letters.size() != count)
    read.unsupported(where, " has ", letters.size(), " letters for ", count, " layers; one for each layer is needed");
  std::vector<std::string_view> types;
  for (const char letter : letters) {
    switch (letter) {
      case 'M':
        types.push_back("mamba");
        break;
      case '*':
        types.push_back("attention");
        break;
      case '-':
        types.push_back("mlp");
        break;
      case 'E':
        types.push_back("moe");
        break;
      default:
        read.unsupported(where, ": the letter ", std::string(1, letter), " is not known; there are M, *, - and E");
    }
  }
  return types;
}

Mixture read_experts(const Reader& read, const Config& c) {
  if (read.quiet().integer("moe_latent_size", "moe_latent_size").value_or(0) != 0)
    read.unsupported(read.key("moe_latent_size", "moe_latent_size"), " (experts that read a narrower row) is not run");
  Mixture mixture = read_mixture(read, c,
                                 {.experts_key = "n_routed_experts",
                                  .experts = 8,
                                  .chosen = 2,
                                  .width = 7688,
                                  .normalised = true,
                                  .score = {.score = RouteScore::sigmoid},
                                  .choice_bias = true,
                                  .groups = 1,
                                  .scale = 1,
                                  .floor = 1e-20f,
                                  .shared = SharedDefaults{.count = 1, .width_key = "moe_shared_expert_intermediate_size", .width = 7688}});
  if (mixture.shared) mixture.shared->network.bias = read.flag("", "mlp_bias", false);
  if (read.notes()) read.gguf_says("expert_shared_count", read.integer("", "n_shared_experts").value_or(1));
  read.gguf_lacks({"expert_gating_func", "expert_group_used_count"});
  read.gguf_says(kArchitecture, std::string(kGgufHybrid[1]));
  return mixture;
}

void configure_hybrid(const Reader& read, Config& c) {
  // In GGUF files, the eps of the rms norms is at one of two keys, as in llama.cpp, whose converter writes the other one.
  const bool rms_key = c.gguf && read.has("attention.layer_norm_rms_epsilon", "");
  read_sizes(read, c,
             {.heads = 32,
              .kv_heads = 8,
              .head_dim = 128,
              .n_ctx = 4096,
              .eps = 1e-5,
              .gguf_eps = rms_key ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
              .some_attend = true,
              .some_networks = true});
  const Recurrent ssd = read_ssd(read, c, {.heads = 128, .key_heads = 8, .key_dim = 128, .value_dim = 64});
  const auto branches = c.gguf ? std::vector<std::string_view>{} : read_branches(read, c.layers.size());
  const auto name = read.string("", "mlp_hidden_act");
  const Activation activation = name ? activation_named(read, read.key("", "mlp_hidden_act"), *name) : Activation::relu2;
  for (Layer& layer : c.layers) {
    FeedForward* f = layer.if_feed_forward();
    if (!f) continue;
    f->gated = false;
    f->activation = activation;
    f->bias = read.flag("", "mlp_bias", false);
  }
  // If a GGUF file has experts, all its networks are mixtures.
  std::optional<Mixture> mixture;
  const bool mixed = c.gguf ? read.integer("expert_count", "").value_or(0) != 0 : std::ranges::find(branches, "moe") != branches.end();
  if (mixed) mixture = read_experts(read, c);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    Layer& layer = c.layers[i];
    if (!branches.empty()) {
      if (branches[i] != "attention") layer.mixer = {};
      if (branches[i] != "mlp" && branches[i] != "moe") layer.network = {};
    }
    if (layer.if_attention() && layer.if_feed_forward())
      read.unsupported("layer ", i, " has attention by ", read.key("attention.head_count_kv", ""), " and a network by ",
                       read.key("feed_forward_length", ""), "; one of them is needed");
    if (layer.if_feed_forward()) {
      if (mixture && (c.gguf || branches[i] == "moe")) layer.network = *mixture;
    } else if (!layer.if_attention()) {
      layer.mixer = ssd;
    }
  }
  say_kv_heads(read, c);
  say_widths(read, c);
}

}  // namespace

const Family mamba2{.name = "mamba2",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = kPrefixes,
                    .names = kNames,
                    .keys = kKeys,
                    .configure = configure};

const Family nemotron_h{.name = "nemotron_h",
                        .gguf_names = kGgufHybrid,
                        .model_types = kTypesHybrid,
                        .prefixes = kPrefixes,
                        .names = kNames,
                        .keys = kKeysHybrid,
                        .configure = configure_hybrid};

}  // namespace pumice::model::families_in_files::mamba2
