// StarCoder 1 and SantaCoder (Li et al. 2023): GPT-2 whose heads share one head of keys and values (Shazeer 2019), with weights as rows.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gpt_bigcode {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"starcoder"}, kTypes[] = {"gpt_bigcode"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embd"},        {"num_attention_heads", "n_head"},          {"num_hidden_layers", "n_layer"},
    {"intermediate_size", "n_inner"}, {"max_position_embeddings", "n_positions"}, {"layer_norm_eps", "layer_norm_epsilon"},
};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "wte"},
    {position_embedding, "position_embd", "wpe"},
    {attn_norm, "blk.{}.attn_norm", "h.{}.ln_1"},
    {q, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {k, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {v, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "h.{}.attn.c_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "h.{}.ln_2"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.c_fc"},
    {down, "blk.{}.ffn_down", "h.{}.mlp.c_proj"},
    {final_norm, "output_norm", "ln_f"},
    {head, "output", "lm_head"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.learned_positions = true;
  read_sizes(read, c, {.kv_heads = 1, .ffn_factor = 4, .n_ctx = 1024, .eps = 1e-5, .activation = Activation::gelu_tanh});
  if (!read.flag("", "multi_query", true)) read.unsupported("multi_query false (each head with keys of its own) is not run");
  if (read.flag("", "add_cross_attention", false)) read.unsupported("add_cross_attention (the decoder of a pair) is not run");
  const bool scaled = read.flag("", "scale_attn_weights", true);
  for (Layer& layer : c.layers) {
    if (!scaled) layer.attention.scale = 1;
    layer.attention.qkv_bias = layer.attention.out_bias = layer.feed_forward.bias = true;
    layer.feed_forward.gated = false;
  }
}

}  // namespace

const Family gpt_bigcode{.name = "gpt_bigcode",
                         .gguf_names = kGguf,
                         .model_types = kTypes,
                         .prefixes = kPrefixes,
                         .names = kNames,
                         .keys = kKeys,
                         .configure = configure};

}  // namespace pumice::model::families_in_files::gpt_bigcode
