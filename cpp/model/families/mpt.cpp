// MPT (MosaicML 2023) has ALiBi, LayerNorm without biases, and one tensor for q, k and v.
#include "model/families/names.h"
#include "model/positions.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mpt {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"mpt"}, kTypes[] = {"mpt"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "d_model"},
    {"num_attention_heads", "n_heads"},
    {"num_hidden_layers", "n_layers"},
    {"max_position_embeddings", "max_seq_len"},
    {"layer_norm_eps", "layer_norm_epsilon"},
};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "wte"},
    {attn_norm, "blk.{}.attn_norm", "blocks.{}.norm_1"},
    {q, "", "blocks.{}.attn.Wqkv", Fused::qkv},
    {k, "", "blocks.{}.attn.Wqkv", Fused::qkv},
    {v, "", "blocks.{}.attn.Wqkv", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "blocks.{}.attn.out_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "blocks.{}.norm_2"},
    {up, "blk.{}.ffn_up", "blocks.{}.ffn.up_proj"},
    {down, "blk.{}.ffn_down", "blocks.{}.ffn.down_proj"},
    {final_norm, "output_norm", "norm_f"},
    {head, "output", "lm_head"},
};

// Throws for options of MPT's own code that transformers does not run (it ignores most of them), and for options that no published model
// uses.
void refuse_other_kinds(const Reader& read, const Config& c) {
  if (c.gguf) {
    if (read.number("attention.clamp_kqv", "").value_or(0) > 0) read.unsupported("clamp_kqv (clamped queries, keys and values) is not run");
    if (read.file().find("blk.0.attn_q_norm.weight")) read.unsupported("a norm of queries and keys (qk_ln) is not run");
    if (read.file().find("position_embd.weight")) read.unsupported("learned positions (MPT without ALiBi) are not run");
    if (read.file().find("blk.0.ffn.act.scales")) read.unsupported("scales of the activation (AWQ) are not run");
    return;
  }
  read.object(read.key("", "attn_config"));  // throws if this key exists and is not an object
  if (read.number("", "attn_config.clip_qkv").value_or(0) != 0)
    read.unsupported("attn_config.clip_qkv (clamped queries, keys and values) is not run");
  for (const char* key : {"attn_config.qk_ln", "attn_config.prefix_lm"}) {
    if (read.flag("", key, false)) read.unsupported(key, " is not run");
  }
  if (!read.flag("", "attn_config.alibi", true)) read.unsupported("attn_config.alibi false (learned positions) is not run");
  if (!read.flag("", "no_bias", true)) read.unsupported("no_bias false is not run");
  if (const std::string type = read.string("", "attn_config.attn_type").value_or("multihead_attention"); type != "multihead_attention")
    read.unsupported("attn_config.attn_type \"", type, "\" is not run");
  if (const std::string norm = read.string("", "norm_type").value_or("layernorm"); norm.find("layernorm") == std::string::npos)
    read.unsupported("norm_type \"", norm, "\" is not run");
  const files::Value* scale = read.file().value(read.key("", "logit_scale"));  // its value may be a number or a text
  if (scale && !std::holds_alternative<std::monostate>(*scale)) read.unsupported("logit_scale is not run");
}

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  // The feed-forward network is always four times as wide as hidden_size, because transformers never uses its key expansion_ratio.
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .ffn_factor = 4, .eps = 1e-5, .activation = Activation::gelu});
  refuse_other_kinds(read, c);
  c.alibi_slopes =
      alibi_slopes(c.layers.front().attention().heads, read.positive("attention.max_alibi_bias", "attn_config.alibi_bias_max", 8));
  for (Layer& layer : c.layers) {
    layer.attention().position_bias = PositionBias::alibi;
    layer.attention().scale = static_cast<float>(read.positive("", "attn_config.softmax_scale", layer.attention().scale));
    layer.feed_forward().gated = false;
  }
}

}  // namespace

const Family mpt{.name = "mpt",
                 .gguf_names = kGguf,
                 .model_types = kTypes,
                 .prefixes = kPrefixes,
                 .names = kNames,
                 .keys = kKeys,
                 .configure = configure};

}  // namespace pumice::model::families_in_files::mpt
