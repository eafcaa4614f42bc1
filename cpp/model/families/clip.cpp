// The text encoder of CLIP (Radford et al. 2021) has causal attention and norms before the branches. The vector of a text is the row of the
// end token after the final norm, projected into the space that texts and images share.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::clip {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"clip_text_model", "clip"}, kPrefixes[] = {"text_model.", ""};
constexpr TensorName kNames[] = {
    {token_embedding, "", "embeddings.token_embedding"},
    {position_embedding, "", "embeddings.position_embedding"},
    {attn_norm, "", "encoder.layers.{}.layer_norm1"},
    {q, "", "encoder.layers.{}.self_attn.q_proj"},
    {k, "", "encoder.layers.{}.self_attn.k_proj"},
    {v, "", "encoder.layers.{}.self_attn.v_proj"},
    {attn_out, "", "encoder.layers.{}.self_attn.out_proj"},
    {ffn_norm, "", "encoder.layers.{}.layer_norm2"},
    {up, "", "encoder.layers.{}.mlp.fc1"},
    {down, "", "encoder.layers.{}.mlp.fc2"},
    {final_norm, "", "final_layer_norm"},
    {projection, "", "text_projection"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = false;
  c.learned_positions = c.norm_bias = true;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 77, .eps = 1e-5, .activation = Activation::quick_gelu});
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.feed_forward().gated = false;
  }
  c.pooling = PoolKind::last;
  const std::int64_t end = read.in_range(read.integer("", "eos_token_id").value_or(49407), 0, kMaxContext, "eos_token_id");
  // Old files have the value 2, which is wrong. In these files, the end token is the token with the largest id.
  if (end == 2) {
    c.text_end = TextEnd{};
  } else {
    c.text_end = TextEnd{.id = static_cast<std::int32_t>(end)};
  }
}

}  // namespace

const Family clip{.name = "clip", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .configure = configure};

}  // namespace pumice::model::families_in_files::clip
