// Falcon (Almazrouei et al. 2023). In 7B, attention and feed-forward network run in parallel after one shared norm, and there is one kv
// head. In 40B, 180B and 11B ("new decoder architecture"), attention and network also run in parallel, with several kv heads, and with one
// shared norm or one norm each. falcon-rw has ALiBi, and the network runs after attention.
#include <cmath>

#include "model/families/names.h"
#include "model/positions.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::falcon {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"falcon"}, kTypes[] = {"falcon"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embed"},
    {"num_key_value_heads", "num_kv_heads"},
    {"intermediate_size", "ffn_hidden_size"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation"},
};
// In safetensors files q, k and v are one tensor, ordered by kv head. Converters to GGUF reorder the tensor's rows to all queries, all
// keys, all values. If a GGUF file has two norms per layer, attn_norm_2 is the one before attention.
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "word_embeddings"},
    {attn_norm, "blk.{}.attn_norm_2", ""},
    {attn_norm, "blk.{}.attn_norm", "h.{}.input_layernorm"},
    {attn_norm, "", "h.{}.ln_attn"},
    {q, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {k, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {v, "", "h.{}.self_attention.query_key_value", Fused::qkv_by_head},
    {attn_out, "blk.{}.attn_output", "h.{}.self_attention.dense"},
    {ffn_norm, "blk.{}.attn_norm", "h.{}.post_attention_layernorm"},
    {ffn_norm, "", "h.{}.ln_mlp"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.dense_h_to_4h"},
    {down, "blk.{}.ffn_down", "h.{}.mlp.dense_4h_to_h"},
    {final_norm, "output_norm", "ln_f"},
    {head, "output", "lm_head"},
};

// The settings that differ between the kinds of Falcon models.
struct Kind {
  bool parallel = true, two_norms = false, alibi = false, bias = false;
  std::int32_t kv_heads = 0;  // 0: the number that read_sizes() has set
};

Kind kind_of(const Reader& read, const Config& c) {
  // GGUF files have only models with parallel branches, because converters accept no others.
  if (c.gguf) return {.two_norms = read.file().find("blk.0.attn_norm_2.weight") != nullptr};
  const bool grouped = read.flag("", "new_decoder_architecture", false), parallel = read.flag("", "parallel_attn", true);
  const std::int64_t norms =
      read.in_range(read.integer("", "num_ln_in_parallel_attn").value_or(grouped ? 2 : 1), 1, 2, read.key("", "num_ln_in_parallel_attn"));
  if (grouped && !parallel) read.unsupported("new_decoder_architecture with parallel_attn false is not run");
  if (!grouped && norms == 2) read.unsupported("num_ln_in_parallel_attn 2 without new_decoder_architecture is not run");
  Kind kind{.parallel = parallel, .two_norms = norms == 2, .alibi = read.flag("", "alibi", false), .bias = read.flag("", "bias", false)};
  // num_kv_heads is ignored without the new decoder architecture. falcon-7b's config.json has the value 71, but the model has one kv head.
  if (!grouped) kind.kv_heads = read.flag("", "multi_query", true) ? 1 : c.layers.front().attention().heads;
  return kind;
}

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = true;
  read_sizes(read, c, {.ffn_factor = 4, .eps = 1e-5, .activation = Activation::gelu});
  const Kind kind = kind_of(read, c);
  if (kind.alibi) {
    c.alibi_slopes = alibi_slopes(c.layers.front().attention().heads);
    // Falcon adds the ALiBi bias to scores before it divides them by sqrt(head_dim), so the slopes are divided, too. transformers also
    // rounds the bias to bfloat16. pumice does not.
    for (float& slope : c.alibi_slopes) slope *= c.layers.front().attention().scale;
  } else {
    read_ropes(read, c, {});
  }
  if (kind.kv_heads > 0) read.gguf_says("attention.head_count_kv", std::int64_t{kind.kv_heads});
  for (Layer& layer : c.layers) {
    if (kind.alibi) layer.attention().position_bias = PositionBias::alibi;
    if (kind.kv_heads > 0) layer.attention().kv_heads = kind.kv_heads;
    layer.join.parallel = kind.parallel;
    layer.network_norms.before = !kind.parallel || kind.two_norms;
    layer.feed_forward().gated = false;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = kind.bias;
  }
}

}  // namespace

const Family falcon{.name = "falcon",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = kPrefixes,
                    .names = kNames,
                    .keys = kKeys,
                    .configure = configure};

}  // namespace pumice::model::families_in_files::falcon
