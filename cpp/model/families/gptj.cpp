// GPT-J (Wang and Komatsuzaki 2021) has biases in the feed-forward network and in the output head. Attention and feed-forward network run
// in parallel, after one shared norm. Rope rotates pairs of neighbouring columns in a part of each head. CodeGen (Nijkamp et al. 2022) is a
// GPT-J with one tensor for q, k and v.
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gptj {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"gptj"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embd"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {"intermediate_size", "n_inner"},
    {"max_position_embeddings", "n_positions"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation_function"},
};
constexpr TensorName kNames[] = {
    {token_embedding, "", "wte"}, {attn_norm, "", "h.{}.ln_1"},  {q, "", "h.{}.attn.q_proj"},
    {k, "", "h.{}.attn.k_proj"},  {v, "", "h.{}.attn.v_proj"},   {attn_out, "", "h.{}.attn.out_proj"},
    {up, "", "h.{}.mlp.fc_in"},   {down, "", "h.{}.mlp.fc_out"}, {final_norm, "", "ln_f"},
    {head, "", "lm_head"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.head_bias = true;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .ffn_factor = 4, .eps = 1e-5, .activation = Activation::gelu_tanh});
  if (read.has("", "rotary_dim") && !read.integer("", "rotary_dim")) read.unsupported("rotary_dim null is not run");
  const std::int32_t head_dim = c.layers.front().attention().head_dim;
  const std::int64_t turned = read.in_range(read.integer("", "rotary_dim").value_or(64), 2, head_dim, "rotary_dim");
  // `partial` is the next double above the quotient, because its product with head_dim could otherwise be rounded to less than rotary_dim.
  read_ropes(read, c, {.interleaved = true, .partial = turned == head_dim ? 1 : std::nextafter(static_cast<double>(turned) / head_dim, 1)});
  for (Layer& layer : c.layers) {
    layer.join.parallel = true;
    layer.network_norms.before = false;
    layer.feed_forward().gated = false;
    layer.feed_forward().bias = true;
  }
}

constexpr std::string_view kCodegenTypes[] = {"codegen"};
constexpr TensorName kCodegenNames[] = {
    {q, "", "h.{}.attn.qkv_proj", Fused::qvk_by_quarter},
    {k, "", "h.{}.attn.qkv_proj", Fused::qvk_by_quarter},
    {v, "", "h.{}.attn.qkv_proj", Fused::qvk_by_quarter},
};

void configure_codegen(const Reader& read, Config& c) {
  configure(read, c);
  const std::int32_t heads = c.layers.front().attention().heads;
  if (heads % 4 != 0)
    read.unsupported(read.key("", "num_attention_heads"), " is ", heads, "; it must be a multiple of 4, by which rows are split");
}

}  // namespace

const Family gptj{.name = "gptj", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .keys = kKeys, .configure = configure};

const Family codegen{.name = "codegen",
                     .model_types = kCodegenTypes,
                     .prefixes = kPrefixes,
                     .names = kCodegenNames,
                     .more_names = kNames,
                     .keys = kKeys,
                     .configure = configure_codegen};

}  // namespace pumice::model::families_in_files::gptj
