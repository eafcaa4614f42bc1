// jina-embeddings v2 (Günther et al. 2023) is BERT with bidirectional ALiBi and a gated feed-forward network. The v2 models for code also
// normalise queries and keys, and add a layer's input a second time. v3 (Sturua et al. 2024) is XLM-RoBERTa with rope. It has a set of
// low-rank adapters per task, which are merged while loading. The config.json of v2 has the model_type "bert". That of v3 has "xlm-roberta"
// if the model's own Python code is in the same folder.
#include <algorithm>

#include "model/families/names.h"
#include "model/positions.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::jina {
namespace {

using enum Role;

bool positions_are(const Reader& read, std::string_view kind) {
  return read.string("", "position_embedding_type").value_or("absolute") == kind;
}

// ---------------------------------------------------------------- v2
constexpr TensorName kNames2[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {type_embedding, "token_types", "embeddings.token_type_embeddings"},
    {embedding_norm, "token_embd_norm", "embeddings.LayerNorm"},
    {q, "blk.{}.attn_q", "encoder.layer.{}.attention.self.query"},
    {k, "blk.{}.attn_k", "encoder.layer.{}.attention.self.key"},
    {v, "blk.{}.attn_v", "encoder.layer.{}.attention.self.value"},
    {q_norm, "blk.{}.attn_q_norm", "encoder.layer.{}.attention.self.layer_norm_q"},
    {k_norm, "blk.{}.attn_k_norm", "encoder.layer.{}.attention.self.layer_norm_k"},
    {attn_out, "blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {attn_second_norm, "blk.{}.attn_norm_2", "encoder.layer.{}.layer_norm_1"},
    {head_dense, "cls", "pooler.dense"},
    {classifier, "cls.output", "classifier"},
};
constexpr TensorName kTextNames[] = {
    {gate, "blk.{}.ffn_up", "encoder.layer.{}.mlp.gated_layers", Fused::gate_up},
    {gate, "blk.{}.ffn_gate", ""},  // early versions of llama.cpp's converter wrote gate and up as two tensors
    {up, "blk.{}.ffn_up", "encoder.layer.{}.mlp.gated_layers", Fused::gate_up},
    {up, "blk.{}.ffn_up", ""},
    {down, "blk.{}.ffn_down", "encoder.layer.{}.mlp.wo"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layer.{}.mlp.layernorm"},
};
constexpr TensorName kCodeNames[] = {
    {gate, "blk.{}.ffn_up", "encoder.layer.{}.mlp.up_gated_layer", Fused::up_gate},
    {gate, "blk.{}.ffn_gate", ""},
    {up, "blk.{}.ffn_up", "encoder.layer.{}.mlp.up_gated_layer", Fused::up_gate},
    {up, "blk.{}.ffn_up", ""},
    {down, "blk.{}.ffn_down", "encoder.layer.{}.mlp.down_layer"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layer.{}.layer_norm_2"},
};
constexpr std::string_view kGguf2[] = {"jina-bert-v2"}, kTypes2[] = {"bert"}, kPrefixes2[] = {"", "bert."};

// Returns true if the file has the tensor. claims_code() recognizes the models for code by their tensors, because no key of their
// config.json distinguishes them.
bool has(const Reader& read, std::string_view name) {
  return std::ranges::any_of(kPrefixes2,
                             [&](std::string_view prefix) { return read.file().find(str(prefix, name, ".weight")) != nullptr; });
}
bool claims_code(const Reader& read) {
  if (read.gguf()) return read.file().find("blk.0.attn_q_norm.weight") != nullptr;
  return has(read, "encoder.layer.0.mlp.up_gated_layer") || has(read, "encoder.layer.0.attention.self.layer_norm_q");
}
bool claims_text(const Reader& read) {
  if (claims_code(read)) return false;
  return read.gguf() || positions_are(read, "alibi") || has(read, "encoder.layer.0.mlp.gated_layers");
}

Activation gate_of(const Reader& read) {
  const std::string kind = read.string("", "feed_forward_type").value_or("geglu");
  if (kind == "geglu") return Activation::gelu;
  if (kind == "reglu") return Activation::relu;
  read.unsupported("feed_forward_type \"", kind, "\" is not known for jina v2; there are geglu and reglu");
}

void configure2(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  read_sizes(read, c, {.n_ctx = 8192, .eps = 1e-12, .activation = Activation::gelu});
  c.alibi_slopes = alibi_slopes(c.layers.front().attention().heads, read.positive("attention.max_alibi_bias", "", 8));
  const Activation activation = gate_of(read);
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().position_bias = PositionBias::alibi;
    layer.attention().qkv_bias = layer.attention().out_bias = true;
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
    layer.feed_forward().activation = activation;
  }
}

void configure2_code(const Reader& read, Config& c) {
  configure2(read, c);
  for (Layer& layer : c.layers) {
    layer.attention().qk_norm = QkNorm::whole;
    layer.mixer_norms.residual = Residual::twice;
  }
}

// ---------------------------------------------------------------- v3
constexpr TensorName kNames3[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {type_embedding, "token_types", "embeddings.token_type_embeddings"},
    {embedding_norm, "token_embd_norm", "emb_ln"},
    {q, "blk.{}.attn_qkv", "encoder.layers.{}.mixer.Wqkv", Fused::qkv},
    {k, "blk.{}.attn_qkv", "encoder.layers.{}.mixer.Wqkv", Fused::qkv},
    {v, "blk.{}.attn_qkv", "encoder.layers.{}.mixer.Wqkv", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "encoder.layers.{}.mixer.out_proj"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "encoder.layers.{}.norm1"},
    {up, "blk.{}.ffn_up", "encoder.layers.{}.mlp.fc1"},
    {down, "blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layers.{}.norm2"},
    {head_dense, "cls", "classifier.dense"},
    {classifier, "cls.output", "classifier.out_proj"},
};
constexpr std::string_view kGguf3[] = {"jina-bert-v3"}, kTypes3[] = {"jina_embeddings_v3", "xlm-roberta"};
constexpr std::string_view kPrefixes3[] = {"", "roberta.", "jina_embeddings_v3."};
constexpr KeyName kKeys3[] = {{"rope_theta", "rotary_emb_base"}};

bool claims3(const Reader& read) { return read.gguf() || read.string("", "model_type") == kTypes3[0] || positions_are(read, "rotary"); }

void configure3(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  read_sizes(read, c, {.n_ctx = 8194, .eps = 1e-5, .activation = Activation::gelu});
  read_ropes(read, c, {.theta = 20000});
  if (c.gguf)
    c.incomplete.push_back(
        "lacks adapters of jina v3's tasks (files of their own in GGUF): vectors are the bare model's. Load its folder with task=");
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
    layer.feed_forward().gated = false;
  }
  add_mlm_head(c);
}

}  // namespace

const Family jina_v2{.name = "jina_v2",
                     .gguf_names = kGguf2,
                     .model_types = kTypes2,
                     .prefixes = kPrefixes2,
                     .names = kNames2,
                     .more_names = kTextNames,
                     .configure = configure2,
                     .claims = claims_text};

const Family jina_v2_code{.name = "jina_v2_code",
                          .gguf_names = kGguf2,
                          .model_types = kTypes2,
                          .prefixes = kPrefixes2,
                          .names = kNames2,
                          .more_names = kCodeNames,
                          .configure = configure2_code,
                          .claims = claims_code};

const Family jina_v3{.name = "jina_v3",
                     .gguf_names = kGguf3,
                     .model_types = kTypes3,
                     .prefixes = kPrefixes3,
                     .names = kNames3,
                     .more_names = names::kRobertaMlm,
                     .keys = kKeys3,
                     .configure = configure3,
                     .claims = claims3};

}  // namespace pumice::model::families_in_files::jina
