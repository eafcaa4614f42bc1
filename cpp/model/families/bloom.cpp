// BLOOM (BigScience 2022) has ALiBi, LayerNorm (also on the embeddings), one tensor for q, k and v (ordered by head), and biases in all
// matrix products.
#include "model/families/names.h"
#include "model/positions.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::bloom {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"bloom"}, kTypes[] = {"bloom"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embed"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {"max_position_embeddings", "seq_length"},
    {"layer_norm_eps", "layer_norm_epsilon"},
};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "word_embeddings"},
    {embedding_norm, "token_embd_norm", "word_embeddings_layernorm"},
    {attn_norm, "blk.{}.attn_norm", "h.{}.input_layernorm"},
    {q, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {k, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {v, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {attn_out, "blk.{}.attn_output", "h.{}.self_attention.dense"},
    {ffn_norm, "blk.{}.ffn_norm", "h.{}.post_attention_layernorm"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.dense_h_to_4h"},
    {down, "blk.{}.ffn_down", "h.{}.mlp.dense_4h_to_h"},
    {final_norm, "output_norm", "ln_f"},
    {head, "output", "lm_head"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.embedding_norm = true;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .ffn_factor = 4, .eps = 1e-5, .activation = Activation::gelu_tanh});
  c.alibi_slopes = alibi_slopes(c.layers.front().attention().heads);
  const bool replace = read.flag("", "apply_residual_connection_post_layernorm", false);
  for (Layer& layer : c.layers) {
    layer.attention().position_bias = PositionBias::alibi;
    layer.mixer_norms.residual = layer.network_norms.residual = replace ? Residual::normalised : Residual::row;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.feed_forward().gated = false;
  }
}

}  // namespace

const Family bloom{.name = "bloom",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = kPrefixes,
                   .names = kNames,
                   .keys = kKeys,
                   .configure = configure};

}  // namespace pumice::model::families_in_files::bloom
