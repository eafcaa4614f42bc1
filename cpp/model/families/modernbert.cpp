// ModernBERT (Warner et al. 2024), for example gte-modernbert, modernbert-embed and granite-embedding r2. A norm precedes each branch,
// except the first layer's attention, which follows the embedding norm. Feed-forward networks are gated. Layers with a window have another
// rope base than layers without one. The window reaches half of local_attention to each side. ModernBERT decoder (Ettin, Weller et al.
// 2025) has causal attention and separate tensors for q, k and v. A dense layer, an activation and a norm precede the decoder's head.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::modernbert {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embeddings.tok_embeddings"},
    {embedding_norm, "token_embd_norm", "embeddings.norm"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.attn_norm"},
    {q, "blk.{}.attn_qkv", "layers.{}.attn.Wqkv", Fused::qkv},
    {k, "blk.{}.attn_qkv", "layers.{}.attn.Wqkv", Fused::qkv},
    {v, "blk.{}.attn_qkv", "layers.{}.attn.Wqkv", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "layers.{}.attn.Wo"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.mlp_norm"},
    {gate, "blk.{}.ffn_up", "layers.{}.mlp.Wi", Fused::gate_up},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.Wi", Fused::gate_up},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.Wo"},
    {final_norm, "output_norm", "final_norm"},
    {head_dense, "cls", "head.dense"},
    {head_norm, "cls.norm", "head.norm"},
    {classifier, "cls.output", "classifier"},
    {mlm_dense, "", "head.dense"},
    {mlm_norm, "", "head.norm"},
    {mlm_decoder, "", "decoder"},
};
constexpr std::string_view kGguf[] = {"modern-bert"}, kTypes[] = {"modernbert"}, kPrefixes[] = {"", "model."};
// The names that config.json's keys had before transformers 5.
constexpr KeyName kKeys[] = {
    {"layer_norm_eps", "norm_eps"},
    {"sliding_window", "local_attention"},
    {"sliding_window_pattern", "global_attn_every_n_layers"},
    {"rope_theta", "global_rope_theta"},
    {"rope_local_base_freq", "local_rope_theta"},
    {"hidden_act", "hidden_activation"},
};

// Reads the dense layer, the activation and the norm before a classifier.
ClassifierHead read_dense(const Reader& read) {
  ClassifierHead head{
      .dense = DenseBefore::all, .activation = Activation::gelu, .norm = true, .dense_bias = read.flag("", "classifier_bias", false)};
  if (const auto name = read.string("", "classifier_activation")) head.activation = activation_named(read, "classifier_activation", *name);
  return head;
}

// Reads the classifier of ModernBertForSequenceClassification. The classifier's input is the first token's row or the mean of all rows.
ClassifierHead read_head(const Reader& read) {
  ClassifierHead head = read_dense(read);
  const std::string pooling = read.string("", "classifier_pooling").value_or("cls");
  if (pooling != "cls" && pooling != "mean")
    read.unsupported("classifier_pooling \"", pooling, "\" is not known for ModernBERT; there are cls and mean");
  head.pooling = pooling == "mean" ? PoolKind::mean : PoolKind::cls;
  return head;
}

void read_layers(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.embedding_norm = true;
  c.norm_bias = read.flag("", "norm_bias", false);
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 8192, .eps = 1e-5, .activation = Activation::gelu});
  read_windows(read, c, {.window = 128, .full_every = 3, .full_first = true, .symmetric = true, .gguf = GgufWindows::size});
  if (!c.gguf && read.object("rope_scaling")) read.unsupported("rope_scaling is not run for ModernBERT");
  read_ropes(read, c, {.theta = 160000, .window_theta = 10000});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  c.layers.front().mixer_norms.before = false;
}

void configure(const Reader& read, Config& c) {
  c.has_head = false;
  c.classifier = read_head(read);
  read_layers(read, c);
  add_mlm_head(c, c.classifier.activation);
  if (c.mlm_head) {
    c.mlm_head->dense_bias = c.classifier.dense_bias;
    c.mlm_head->bias = read.flag("", "decoder_bias", true);
  }
  if (const auto every = read.integer("", "global_attn_every_n_layers")) read.gguf_says("attention.sliding_window_pattern", *every);
  if (const auto name = read.string("", "hidden_activation")) read.gguf_says("hidden_activation", *name);
  // The name of the activation in a GGUF file. read_sizes() reads the activation only from config.json.
  const auto said = read.string("hidden_activation", "");
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    if (c.gguf && said) layer.feed_forward().activation = activation_named(read, read.key("hidden_activation", ""), *said);
  }
}

constexpr std::string_view kDecoderTypes[] = {"modernbert-decoder"};
constexpr TensorName kDecoderNames[] = {
    {q, "", "layers.{}.attn.q_proj"},
    {k, "", "layers.{}.attn.k_proj"},
    {v, "", "layers.{}.attn.v_proj"},
    // A role's first name is the one in files with a head for logits, and its second name the one in files with a classifier.
    {head_dense, "", "lm_head.dense"},
    {head_dense, "", "head.dense"},
    {head_norm, "", "lm_head.norm"},
    {head_norm, "", "head.norm"},
    {head, "", "decoder"},
};

void configure_decoder(const Reader& read, Config& c) {
  read_layers(read, c);
  c.head_transform = true;
  c.head_bias = read.flag("", "decoder_bias", true);
  c.classifier = read_dense(read);
  c.classifier.pooling = PoolKind::last;
  c.classifier.bias = c.classifier.dense_bias;
}

}  // namespace

const Family modernbert{.name = "modernbert",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = kPrefixes,
                        .names = kNames,
                        .keys = kKeys,
                        .configure = configure};

const Family modernbert_decoder{.name = "modernbert_decoder",
                                .model_types = kDecoderTypes,
                                .prefixes = kPrefixes,
                                .names = kDecoderNames,
                                .more_names = kNames,
                                .keys = kKeys,
                                .configure = configure_decoder};

}  // namespace pumice::model::families_in_files::modernbert
