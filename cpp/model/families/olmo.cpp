// OLMo 1 (Groeneveld et al. 2024) has LayerNorm without weights. OLMo 2 (OLMo Team 2024) has norms only on the outputs of the branches. It
// normalises q over all heads as one vector, and k, too. In OLMo 3 (2025), three of four layers have a window, and only the other layers
// have YaRN. In OLMo Hybrid (2026), three of four layers have a gated delta rule and norms on the inputs of the branches. The others are
// OLMo 2's layers, without rope in the published models.
#include <algorithm>
#include <array>

#include "core/program_check.h"
#include "model/families/names.h"
#include "model/rope.h"
#include "model/scan_settings.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::olmo {
namespace {

using enum Role;

constexpr std::string_view kGguf1[] = {"olmo"}, kTypes1[] = {"olmo"};
constexpr std::string_view kGguf2[] = {"olmo2"}, kTypes2[] = {"olmo2"}, kTypes3[] = {"olmo3"};
constexpr TensorName kNames2[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
};

void configure1(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_weight = false;
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {});
  if (read.quiet().number("attention.clamp_kqv", "clip_qkv").value_or(0) > 0)
    read.unsupported("clip_qkv (clamped queries, keys and values) is not run");
  read_attention_bias(read, c);
}

void read_second(const Reader& read, Config& c) {
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.attention().qk_norm = QkNorm::whole;
    layer.mixer_norms = layer.network_norms = {.before = false, .branch = true};
  }
}

// Reads the settings of OLMo 3. A GGUF file with the architecture name "olmo2" is an OLMo 3 if it has a window.
void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.eps = 1e-5});
  read_windows(read, c, {.window = 4096, .full_every = 4, .gguf = GgufWindows::by_layer});
  const double theta = read.positive("rope.freq_base", "rope_theta", 500000);
  read_ropes(read, c, {.theta = theta, .window_theta = theta});
  read_second(read, c);
  read.gguf_says(kArchitecture, "olmo2");
  read.gguf_lacks({"rope.freq_base_swa"});
}

void configure2(const Reader& read, Config& c) {
  if (c.gguf && read.integer("attention.sliding_window", "").value_or(0) != 0) return configure3(read, c);
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {});
  read_second(read, c);
}

constexpr std::string_view kTypesHybrid[] = {"olmo_hybrid"};
constexpr TensorName kNamesHybrid[] = {
    {attn_norm, "", "layers.{}.attention_layer_norm"},
    {attn_norm, "", "layers.{}.input_layernorm"},
    {attn_branch_norm, "", "layers.{}.post_attention_layernorm"},
    // save_pretrained() of transformers 5.24 writes feedforward_layer_norm in place of post_attention_layernorm for layers with attention.
    {attn_branch_norm, "", "layers.{}.feedforward_layer_norm"},
    {ffn_norm, "", "layers.{}.feedforward_layer_norm"},
    {ffn_norm, "", "layers.{}.post_attention_layernorm"},
    {ffn_branch_norm, "", "layers.{}.post_feedforward_layernorm"},
    {scan_q, "", "layers.{}.linear_attn.q_proj"},
    {scan_k, "", "layers.{}.linear_attn.k_proj"},
    {scan_v, "", "layers.{}.linear_attn.v_proj"},
    {scan_gate, "", "layers.{}.linear_attn.g_proj"},
    {scan_step, "", "layers.{}.linear_attn.a_proj"},
    {scan_beta, "", "layers.{}.linear_attn.b_proj"},
    {scan_q_taps, "", "layers.{}.linear_attn.q_conv1d"},
    {scan_k_taps, "", "layers.{}.linear_attn.k_conv1d"},
    {scan_v_taps, "", "layers.{}.linear_attn.v_conv1d"},
    {scan_step_bias, "", "layers.{}.linear_attn.dt_bias", Fused::no, false, Bare::both},
    {scan_rate, "", "layers.{}.linear_attn.A_log", Fused::no, false, Bare::both},
    {scan_norm, "", "layers.{}.linear_attn.o_norm"},
    {scan_out, "", "layers.{}.linear_attn.o_proj"},
};
constexpr TypeName kLayerTypes[] = {{"linear_attention", "linear_attention"}, {"full_attention", "full_attention"}};

// Returns the gated delta rule that layers without attention have as their mixer. Its norm has another eps than the model's other norms.
Recurrent read_hybrid_delta(const Reader& read, const Config& c) {
  const std::int32_t heads = c.layers.front().attention().heads;
  const std::int32_t key_heads = read.size("", "linear_num_key_heads", kMaxHeads, heads);
  const std::int32_t key_dim = read.size("", "linear_key_head_dim", kMaxStateDim, std::int64_t{3} * c.hidden_size / (4 * key_heads));
  Recurrent delta = read_delta(read, c, {.heads = heads, .key_heads = heads, .key_dim = key_dim, .value_dim = 2 * key_dim});
  delta.activation = c.layers.front().feed_forward().activation;
  delta.norm->eps = 1e-5f;
  if (read.flag("", "linear_allow_neg_eigval", true)) delta.delta->strength = 2;
  return delta;
}

// Returns true if no layer has rope. config.json then has null as the rope base. If the key is missing, the base is 10000.
bool no_rope(const Reader& read) {
  return std::ranges::any_of(std::array{"rope_theta", "rope_parameters.rope_theta"}, [&](const char* key) {
    const files::Value* base = read.file().value(read.key("", key));
    return base && std::holds_alternative<std::monostate>(*base);
  });
}

void configure_hybrid(const Reader& read, Config& c) {
  read_sizes(read, c, {.n_ctx = 65536});
  const Recurrent delta = read_hybrid_delta(read, c);
  const auto types = read_layer_types(read, c.layers.size(), kLayerTypes);
  const std::size_t last = c.layers.size() - 1;
  for (std::size_t i = 0; i <= last; ++i) {
    const bool attends = types.empty() ? i % 4 == 3 || (last < 3 && i == last) : types[i] == "full_attention";
    if (!attends) {
      c.layers[i].mixer = delta;
      continue;
    }
    c.layers[i].attention().qk_norm = QkNorm::whole;
    c.layers[i].mixer_norms = c.layers[i].network_norms = {.before = false, .branch = true};
  }
  read_attention_bias(read, c);
  if (!no_rope(read)) read_ropes(read, c, {});
}

}  // namespace

const Family olmo{.name = "olmo",
                  .gguf_names = kGguf1,
                  .model_types = kTypes1,
                  .prefixes = names::kDecoderPrefixes,
                  .names = names::kLlama,
                  .configure = configure1,
                  .pairs_in_gguf = true};

const Family olmo2{.name = "olmo2",
                   .gguf_names = kGguf2,
                   .model_types = kTypes2,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames2,
                   .more_names = names::kLlama,
                   .configure = configure2};

const Family olmo3{.name = "olmo3",
                   .model_types = kTypes3,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames2,
                   .more_names = names::kLlama,
                   .configure = configure3};

const Family olmo_hybrid{.name = "olmo_hybrid",
                         .model_types = kTypesHybrid,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNamesHybrid,
                         .more_names = names::kLlama,
                         .configure = configure_hybrid};

}  // namespace pumice::model::families_in_files::olmo
