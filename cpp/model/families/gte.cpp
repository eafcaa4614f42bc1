// gte 1.5, gte multilingual (Zhang et al. 2024), stella 400M and arctic-embed-m v2 are a BERT with rope and a gated feed-forward network.
// Their files on the Hugging Face hub have the model_type "new".
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"
#include "model/token_types.h"

namespace pumice::model::families_in_files::gte {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {token_embedding, "", "embeddings.word_embeddings"},
    {type_embedding, "", "embeddings.token_type_embeddings"},
    {embedding_norm, "", "embeddings.LayerNorm"},
    {q, "", "encoder.layer.{}.attention.qkv_proj", Fused::qkv},
    {k, "", "encoder.layer.{}.attention.qkv_proj", Fused::qkv},
    {v, "", "encoder.layer.{}.attention.qkv_proj", Fused::qkv},
    {attn_out, "", "encoder.layer.{}.attention.o_proj"},
    {attn_residual_norm, "", "encoder.layer.{}.attn_ln"},
    {gate, "", "encoder.layer.{}.mlp.up_gate_proj", Fused::up_gate},
    {up, "", "encoder.layer.{}.mlp.up_gate_proj", Fused::up_gate},
    {down, "", "encoder.layer.{}.mlp.down_proj"},
    {ffn_residual_norm, "", "encoder.layer.{}.mlp_ln"},
    {head_dense, "", "pooler.dense"},
    {classifier, "", "classifier"},
};
constexpr std::string_view kTypes[] = {"gte", "new"}, kPrefixes[] = {"", "gte.", "new."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.token_types = tells_types(read, kPrefixes, "embeddings.token_type_embeddings.weight");
  for (const char* key : {"logn_attention_scale", "logn_attention_clip1"}) {
    if (read.flag("", key, false)) read.unsupported(key, " is not run");
  }
  if (const auto kind = read.string("", "layer_norm_type"); kind && *kind != "layer_norm")
    read.unsupported("layer_norm_type \"", *kind, "\" is not run; \"layer_norm\" is");
  if (!read.flag("", "pack_qkv", true)) read.unsupported("pack_qkv false (queries, keys and values in three tensors) is not run");
  read_sizes(read, c, {.n_ctx = 8192, .eps = 1e-12, .activation = Activation::gelu});
  if (read.number("", "rope_scaling.mixed_b")) read.unsupported("rope_scaling.mixed_b (mixed NTK) is not run");
  read_ropes(read, c, {.theta = 160000});
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().qkv_bias = layer.attention().out_bias = true;
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
  }
  add_mlm_head(c);
}

}  // namespace

const Family gte{
    .name = "gte", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .more_names = names::kRobertaMlm, .configure = configure};

}  // namespace pumice::model::families_in_files::gte
