// GPT-NeoX (Black et al. 2022) and Pythia have one tensor for q, k and v, ordered by head, and a rope that rotates a part of each head.
// Attention and feed-forward network run in parallel, each after a norm of its own.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gpt_neox {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"gptneox"}, kTypes[] = {"gpt_neox"}, kPrefixes[] = {"gpt_neox.", ""};
constexpr KeyName kKeys[] = {{"rope_theta", "rotary_emb_base"}, {"partial_rotary_factor", "rotary_pct"}};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embed_in"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.input_layernorm"},
    {q, "", "layers.{}.attention.query_key_value", Fused::qkv_by_head},
    {k, "", "layers.{}.attention.query_key_value", Fused::qkv_by_head},
    {v, "", "layers.{}.attention.query_key_value", Fused::qkv_by_head},
    {attn_out, "blk.{}.attn_output", "layers.{}.attention.dense"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.post_attention_layernorm"},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.dense_h_to_4h"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.dense_4h_to_h"},
    {final_norm, "output_norm", "final_layer_norm"},
    {head, "output", "embed_out"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = true;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .eps = 1e-5, .activation = Activation::gelu});
  read_ropes(read, c, {.partial = 0.25});
  // GGUF files must have use_parallel_residual, as in llama.cpp.
  if (c.gguf && !read.has("use_parallel_residual", "")) read.missing(read.key("use_parallel_residual", ""));
  const bool parallel = read.flag("use_parallel_residual", "use_parallel_residual", true);
  const bool bias = read.biases("blk.0.attn_qkv.bias", "attention_bias", true);
  for (Layer& layer : c.layers) {
    layer.join.parallel = parallel;
    layer.attention().qkv_bias = layer.attention().out_bias = bias;
    layer.feed_forward().bias = true;
    layer.feed_forward().gated = false;
  }
}

}  // namespace

const Family gptneox{.name = "gptneox",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = kPrefixes,
                     .names = kNames,
                     .keys = kKeys,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::gpt_neox
