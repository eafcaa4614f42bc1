// gpt-oss 20B and 120B (OpenAI 2025) have attention sinks, a window in every other layer, and experts with biases. The values of an
// expert's gate and up are limited (Clamp). In OpenAI's folders the experts are MXFP4. Other folders may have them as floats, transposed.
// OpenAI Privacy Filter (2026) is an encoder of such layers, all with a window, and with a classifier that labels tokens.
#include <cmath>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gpt_oss {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"gpt-oss"}, kTypes[] = {"gpt_oss"};
constexpr TensorName kNames[] = {
    {ffn_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {sinks, "blk.{}.attn_sinks", "layers.{}.self_attn.sinks", Fused::no, false, Bare::safetensors},
    {router, "blk.{}.ffn_gate_inp", "layers.{}.mlp.router"},
    {expert_gate, "blk.{}.ffn_gate_exps", ""},
    {expert_up, "blk.{}.ffn_up_exps", ""},
    {expert_gate, "", "layers.{}.mlp.experts.gate_up_proj_blocks", Fused::expert_gate_up_by_row, false, Bare::safetensors},
    {expert_up, "", "layers.{}.mlp.experts.gate_up_proj_blocks", Fused::expert_gate_up_by_row, false, Bare::safetensors},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.mlp.experts.down_proj_blocks", Fused::no, false, Bare::safetensors},
    {expert_gate, "", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up_by_row, true, Bare::safetensors},
    {expert_up, "", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up_by_row, true, Bare::safetensors},
    {expert_down, "", "layers.{}.mlp.experts.down_proj", Fused::no, true, Bare::safetensors},
};

constexpr std::string_view kFilterTypes[] = {"openai_privacy_filter"}, kFilterPrefixes[] = {"model.", ""};
// One tensor has the matrices of all experts, transposed. In gate_up_proj, each expert has the rows of gate and then the rows of up.
constexpr TensorName kFilterNames[] = {
    {sinks, "", "layers.{}.self_attn.sinks", Fused::no, false, Bare::safetensors},
    {router, "", "layers.{}.mlp.router"},
    {expert_gate, "", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, true, Bare::safetensors},
    {expert_up, "", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, true, Bare::safetensors},
    {expert_down, "", "layers.{}.mlp.experts.down_proj", Fused::no, true, Bare::safetensors},
};

void read_attention(const Reader& read, Config& c, const RopeDefaults& rope) {
  // config.json must have one of these keys. Without them GptOssConfig uses default numbers for YaRN, which no published file relies on.
  if (!c.gguf && !read.object("rope_parameters") && !read.object("rope_scaling"))
    read.unsupported("rope_parameters (or rope_scaling) is missing; ", c.family->name, " needs its settings of YaRN");
  read_ropes(read, c, rope);
  for (Layer& layer : c.layers) {
    layer.attention().sinks = true;
    layer.attention().qkv_bias = layer.attention().out_bias = read.flag("", "attention_bias", true);
  }
}

void read_experts(const Reader& read, Config& c) {
  Mixture mixture = read_mixture(read, c, {.experts_key = "num_local_experts", .width_key = "", .experts = 128, .chosen = 4});
  mixture.router.bias = mixture.bias = true;
  constexpr double kAlpha = 1.702;  // Activation::quick_gelu is x * sigmoid(1.702 x)
  if (const double alpha = read.positive("", "swiglu_alpha", kAlpha); std::abs(alpha - kAlpha) > 1e-6)
    read.unsupported("swiglu_alpha is ", alpha, "; ", kAlpha, " is needed");
  mixture.activation = Activation::quick_gelu;
  mixture.clamp = Clamp{.limit = static_cast<float>(read.positive("", "swiglu_limit", 7)), .shift = 1};
  set_mixtures(c, mixture, [](std::size_t) { return true; });
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 64, .kv_heads = 8, .head_dim = 64, .n_ctx = 131072, .eps = 1e-5});
  read_windows(read, c, {.window = 128, .full_every = 2, .gguf = GgufWindows::size});
  read_attention(read, c, {.theta = 150000, .gguf_truncates = false});
  read_experts(read, c);
}

void configure_filter(const Reader& read, Config& c) {
  c.has_head = false;
  c.classifier.what = Classifies::tokens;
  read_sizes(read, c, {.heads = 14, .kv_heads = 2, .head_dim = 64, .n_ctx = 131072, .eps = 1e-5});
  read_windows(read, c, {.window = 128});
  read_attention(read, c, {.theta = 150000, .interleaved = true});
  for (Layer& layer : c.layers) layer.attention().causal = false;
  read_experts(read, c);
}

}  // namespace

const Family gpt_oss{.name = "gpt_oss",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure};

const Family openai_privacy_filter{.name = "openai_privacy_filter",
                                   .model_types = kFilterTypes,
                                   .prefixes = kFilterPrefixes,
                                   .names = kFilterNames,
                                   .more_names = names::kLlama,
                                   .configure = configure_filter};

}  // namespace pumice::model::families_in_files::gpt_oss
