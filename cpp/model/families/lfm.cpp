// LFM2 and LFM2.5 (Liquid AI 2025). Most layers have a short convolution between two gates, and the others have attention with a norm for
// each head of q and k. LFM2 MoE (2025) has experts in all but the first layers. LFM3 (2026) has wider convolutions, windows in half of the
// layers with attention, a gate for each head, and norms on the outputs of the branches.
#include <algorithm>
#include <cmath>

#include "core/program_check.h"
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::lfm {
namespace {

using enum Role;

constexpr std::string_view kGguf2[] = {"lfm2"}, kTypes2[] = {"lfm2", "lfm2_bidirectional"};
constexpr TensorName kNames2[] = {
    {attn_norm, "blk.{}.attn_norm", "layers.{}.operator_norm"},
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.q_layernorm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.k_layernorm"},
    {attn_out, "blk.{}.attn_output", "layers.{}.self_attn.out_proj"},
    {conv_in, "blk.{}.shortconv.in_proj", "layers.{}.conv.in_proj"},
    {conv_taps, "blk.{}.shortconv.conv", "layers.{}.conv.conv"},
    {conv_out, "blk.{}.shortconv.out_proj", "layers.{}.conv.out_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.ffn_norm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.feed_forward.w1"},
    {up, "blk.{}.ffn_up", "layers.{}.feed_forward.w3"},
    {down, "blk.{}.ffn_down", "layers.{}.feed_forward.w2"},
    {final_norm, "token_embd_norm", "embedding_norm"},  // llama.cpp uses this GGUF name for the final norm
};
constexpr std::string_view kGgufMoe[] = {"lfm2moe"}, kTypesMoe[] = {"lfm2_moe"};
constexpr TensorName kExpertNames[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.feed_forward.gate"},
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.feed_forward.expert_bias", Fused::no, false, Bare::both},
    {expert_gate, "blk.{}.ffn_gate_exps", "layers.{}.feed_forward.experts.{expert}.w1"},
    {expert_up, "blk.{}.ffn_up_exps", "layers.{}.feed_forward.experts.{expert}.w3"},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.feed_forward.experts.{expert}.w2"},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.feed_forward.experts.gate_up_proj", Fused::expert_gate_up, false,
     Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.feed_forward.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_down, "", "layers.{}.feed_forward.experts.down_proj", Fused::no, false, Bare::safetensors},
};
constexpr auto kNamesMoe = names::joined(kNames2, kExpertNames);
constexpr std::string_view kTypes3[] = {"lfm3"};
constexpr TensorName kNames3[] = {
    {attn_norm, "", "layers.{}.operator_norm"},
    {attn_branch_norm, "", "layers.{}.post_operator_norm"},
    {attn_gate, "", "layers.{}.self_attn.gate_proj"},  // the name in files on the hub
    {attn_gate, "", "layers.{}.self_attn.g_proj"},
    {conv_in, "", "layers.{}.conv.in_proj"},
    {conv_taps, "", "layers.{}.conv.conv"},
    {conv_out, "", "layers.{}.conv.out_proj"},
    {ffn_norm, "", "layers.{}.ffn_norm"},
    {ffn_branch_norm, "", "layers.{}.post_ffn_norm"},
    {gate, "", "layers.{}.feed_forward.w1"},
    {up, "", "layers.{}.feed_forward.w3"},
    {down, "", "layers.{}.feed_forward.w2"},
    {final_norm, "", "embedding_norm"},
};
constexpr KeyName kKeys[] = {{"rms_norm_eps", "norm_eps"}};
constexpr TypeName kLayerTypes3[] = {{"conv", "conv"}, {"full_attention", "full_attention"}, {"sliding_attention", "sliding_attention"}};
constexpr KeyName kKeys2[] = {{"rms_norm_eps", "norm_eps"}, {"intermediate_size", "block_ff_dim"}};
constexpr TypeName kLayerTypes[] = {{"conv", "conv"}, {"full_attention", "full_attention"}};

// Returns the width of the feed-forward networks. It is computed from the width in config.json: 2/3 of it, times block_ffn_dim_multiplier,
// rounded up to a multiple of block_multiple_of. GGUF files have the result.
std::int32_t adjusted_width(const Reader& read, std::int32_t width) {
  if (read.gguf() || !read.flag("", "block_auto_adjust_ff_dim", true)) return width;
  const double factor = read.has("", "block_ffn_dim_multiplier") ? read.number("", "block_ffn_dim_multiplier").value_or(0) : 1;
  const std::int64_t multiple = read.size("", "block_multiple_of", kMaxWidth, 256);
  std::int64_t adjusted = 2 * std::int64_t{width} / 3;
  // If block_ffn_dim_multiplier is null, the width is 2/3 of that in config.json, without rounding.
  if (factor != 0) {
    if (!(factor > 0 && factor < 1e6)) read.bad_number(read.key("", "block_ffn_dim_multiplier"), factor, "a positive number below 1e6");
    adjusted = static_cast<std::int64_t>(factor * static_cast<double>(adjusted));
    adjusted = (adjusted + multiple - 1) / multiple * multiple;
  }
  return static_cast<std::int32_t>(read.in_range(adjusted, 1, kMaxWidth * 4, read.key("", "intermediate_size")));
}

// Reads the settings of the short convolutions. `taps` is the default number of taps.
ShortConv read_conv(const Reader& read, std::int64_t taps) {
  return {.taps = read.size("shortconv.l_cache", "conv_L_cache", kMaxTaps, read.gguf() ? std::nullopt : std::optional(taps)),
          .bias = read.flag("", "conv_bias", false)};
}

// Makes a short convolution the mixer of all layers without attention. config.json has a list of the layers' types or, in older files, a
// list of the layers with attention.
void read_mixers(const Reader& read, Config& c) {
  const auto types = read_layer_types(read, c.layers.size(), kLayerTypes);
  const auto attends = c.gguf || !types.empty() ? std::nullopt : read.file().integer_list(read.key("", "full_attn_idxs"));
  const ShortConv conv = read_conv(read, 3);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    bool here = c.layers[i].if_attention() != nullptr;
    if (!types.empty()) here = types[i] == "full_attention";
    if (attends) here = std::ranges::find(*attends, static_cast<std::int64_t>(i)) != attends->end();
    if (!here) c.layers[i].mixer = conv;
  }
  say_kv_heads(read, c);
}

// Returns true if the model is an embedder with bidirectional attention and centred convolutions (LFM2.5-Embedding, LFM2.5-ColBERT).
// config.json shows this by the model's class, and GGUF files by attention.causal.
bool sees_both_ways(const Reader& read) {
  if (read.gguf()) return !read.flag("attention.causal", "", true);
  if (read.text("model_type") == "lfm2_bidirectional") return true;
  const files::Value* classes = read.file().value("architectures");  // ignored if it is not a list of strings
  const auto* names = classes ? std::get_if<files::StringList>(classes) : nullptr;
  return names && names->size() > 0 && (*names)[0].starts_with("Lfm2Bidirectional");
}

// Reads the settings that LFM2 models with and without experts share. Afterwards the networks of all layers are dense, also in models with
// experts.
void read_layers2(const Reader& read, Config& c) {
  if (read.integer("attention.sliding_window", "").value_or(0) != 0)
    read.unsupported(read.key("attention.sliding_window", ""), " (windows) is not run for ", c.family->name, "; it must be 0 or absent");
  if (read.gguf() && read.file().find("dense_2.weight"))
    read.unsupported(
        "dense_2.weight (LFM2.5-ColBERT as GGUF) is not run: the file does not say how queries and documents are read. "
        "Load the model's folder of safetensors instead");
  read_sizes(read, c, {.heads = 32, .kv_heads = 8, .n_ctx = 128000, .eps = 1e-5, .some_attend = true});
  read_mixers(read, c);
  read_ropes(read, c, {.theta = 1e6});
  for (Layer& layer : c.layers)
    if (Attention* a = layer.if_attention()) a->qk_norm = QkNorm::head;
}

void configure_moe(const Reader& read, Config& c) {
  read_layers2(read, c);
  read_mixtures(read, c,
                {.experts = 32,
                 .chosen = 4,
                 .width = 1792,
                 .normalised = true,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = read.flag("", "use_expert_bias", true),
                 .scale = 1,
                 .floor = 1e-6f,
                 .dense = DenseDefaults{.first_key = "num_dense_layers", .first = 2}});
  read.gguf_lacks({"expert_weights_norm", "expert_weights_scale"});
}

void configure2(const Reader& read, Config& c) {
  read_layers2(read, c);
  for (Layer& layer : c.layers) layer.feed_forward().width = adjusted_width(read, layer.feed_forward().width);
  read.gguf_says("feed_forward_length", std::int64_t{c.layers.front().feed_forward().width});
  if (!sees_both_ways(read)) return;
  c.has_head = false;
  for (Layer& layer : c.layers) {
    if (Attention* a = layer.if_attention()) a->causal = false;
    ShortConv* conv = layer.if_short_conv();
    if (!conv) continue;
    if (conv->taps % 2 == 0)
      read.unsupported(read.key("shortconv.l_cache", "conv_L_cache"), " is ", conv->taps,
                       ": a centred convolution needs an odd number of taps");
    conv->causal = false;
  }
}

// Configures LFM3. If config.json has no layer_types, layers 2, 6, 10, ... (counted from 0) attend to the whole text, layers 4, 8, 12, ...
// attend within a window, and the others have convolutions.
void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 16, .kv_heads = 4, .head_dim = 128, .n_ctx = 128000, .eps = 1e-5});
  const auto types = read_layer_types(read, c.layers.size(), kLayerTypes3);
  const std::string where = read.key("", "sliding_window");
  const std::int64_t said = read.has("", "sliding_window") ? read.integer("", "sliding_window").value_or(0) : 256;
  const std::int64_t window = read.in_range(said, 0, kMaxContext, where);
  const std::int32_t used = window < c.n_ctx ? static_cast<std::int32_t>(window) : 0;
  const ShortConv conv = read_conv(read, 7);
  const bool gated = read.flag("", "use_attention_gate", true), branch_norms = read.flag("", "use_sandwich_norm", true);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    Layer& layer = c.layers[i];
    const std::string_view type = !types.empty()        ? types[i]
                                  : i % 4 == 2          ? "full_attention"
                                  : i % 4 == 0 && i > 0 ? "sliding_attention"
                                                        : "conv";
    layer.mixer_norms.branch = layer.network_norms.branch = branch_norms;
    layer.windowed = type == "sliding_attention";
    if (type == "conv") {
      layer.mixer = conv;
      continue;
    }
    Attention& a = layer.attention();
    a.window = layer.windowed ? used : 0;
    a.qk_norm = QkNorm::head;
    if (gated) a.gate = {.by_head = true};
  }
  read_ropes(read, c, {.theta = 1e6, .window_theta = 10000, .proportional = 0.5, .by_kind = !read.object(read.key("", "rope_parameters"))});
  read_attention_bias(read, c);
}

}  // namespace

const Family lfm2{.name = "lfm2",
                  .gguf_names = kGguf2,
                  .model_types = kTypes2,
                  .prefixes = names::kDecoderPrefixes,
                  .names = kNames2,
                  .more_names = names::kLlama,
                  .keys = kKeys2,
                  .configure = configure2};

const Family lfm2_moe{.name = "lfm2_moe",
                      .gguf_names = kGgufMoe,
                      .model_types = kTypesMoe,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNamesMoe,
                      .more_names = names::kLlama,
                      .keys = kKeys,
                      .configure = configure_moe};

const Family lfm3{.name = "lfm3",
                  .model_types = kTypes3,
                  .prefixes = names::kDecoderPrefixes,
                  .names = kNames3,
                  .more_names = names::kLlama,
                  .keys = kKeys,
                  .configure = configure3};

}  // namespace pumice::model::families_in_files::lfm
