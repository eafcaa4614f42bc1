// The encoder of T5 (Raffel et al. 2020) has RMS norms before the branches, and no biases in matrix products. It has no position
// embeddings, but a learned bias on attention scores that depends on the distance between query and key. Scores are not scaled. In version
// 1.1 the network has a gate. From a file of the whole model, only the encoder is loaded.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::t5 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"t5encoder", "t5"}, kTypes[] = {"t5"}, kPrefixes[] = {""};
constexpr KeyName kKeys[] = {{"hidden_size", "d_model"},
                             {"head_dim", "d_kv"},
                             {"intermediate_size", "d_ff"},
                             {"num_attention_heads", "num_heads"},
                             {"num_hidden_layers", "num_layers"},
                             {"max_position_embeddings", "n_positions"},
                             {"rms_norm_eps", "layer_norm_epsilon"}};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "shared"},
    {token_embedding, "token_embd", "encoder.embed_tokens"},
    {position_bias, "enc.blk.0.attn_rel_b", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
    {attn_norm, "enc.blk.{}.attn_norm", "encoder.block.{}.layer.0.layer_norm"},
    {q, "enc.blk.{}.attn_q", "encoder.block.{}.layer.0.SelfAttention.q"},
    {k, "enc.blk.{}.attn_k", "encoder.block.{}.layer.0.SelfAttention.k"},
    {v, "enc.blk.{}.attn_v", "encoder.block.{}.layer.0.SelfAttention.v"},
    {attn_out, "enc.blk.{}.attn_o", "encoder.block.{}.layer.0.SelfAttention.o"},
    {ffn_norm, "enc.blk.{}.ffn_norm", "encoder.block.{}.layer.1.layer_norm"},
    {gate, "enc.blk.{}.ffn_gate", "encoder.block.{}.layer.1.DenseReluDense.wi_0"},
    {up, "enc.blk.{}.ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi"},
    {up, "", "encoder.block.{}.layer.1.DenseReluDense.wi_1"},
    {down, "enc.blk.{}.ffn_down", "encoder.block.{}.layer.1.DenseReluDense.wo"},
    {final_norm, "enc.output_norm", "encoder.final_layer_norm"},
};

// Reads feed_forward_proj, which is "relu", or "gated-" followed by the gate's activation. "gated-gelu" means the tanh approximation of
// gelu.
void read_feed_forward(const Reader& read, Config& c) {
  std::string kind = read.string("", "feed_forward_proj").value_or("relu");
  if (c.gguf) kind = read.file().find("enc.blk.0.ffn_gate.weight") ? "gated-gelu" : "relu";
  const bool gated = kind.starts_with("gated-");
  const std::string act = gated ? kind.substr(6) : kind;
  const Activation activation = activation_named(read, "feed_forward_proj", kind == "gated-gelu" ? "gelu_new" : act);
  for (Layer& layer : c.layers) {
    layer.feed_forward().gated = gated;
    layer.feed_forward().activation = activation;
  }
}

void configure(const Reader& read, Config& c) {
  c.has_head = false;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-6});
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().scale = 1;
  }
  read_feed_forward(read, c);
  read_position_buckets(read, c, {.count = 32, .max_distance = 128});
}

}  // namespace

const Family t5{.name = "t5",
                .gguf_names = kGguf,
                .model_types = kTypes,
                .prefixes = kPrefixes,
                .names = kNames,
                .keys = kKeys,
                .configure = configure};

}  // namespace pumice::model::families_in_files::t5
