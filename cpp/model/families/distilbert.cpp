// DistilBERT (Sanh et al. 2019) has BERT's layers, no token types, and other tensor names. Its GGUF files have the architecture name
// "bert".
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::distilbert {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"distilbert"}, kPrefixes[] = {"", "distilbert."};
constexpr KeyName kKeys[] = {{"hidden_size", "dim"},
                             {"num_attention_heads", "n_heads"},
                             {"num_hidden_layers", "n_layers"},
                             {"intermediate_size", "hidden_dim"},
                             {"hidden_act", "activation"}};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {position_embedding, "position_embd", "embeddings.position_embeddings"},
    {embedding_norm, "token_embd_norm", "embeddings.LayerNorm"},
    {q, "blk.{}.attn_q", "transformer.layer.{}.attention.q_lin"},
    {k, "blk.{}.attn_k", "transformer.layer.{}.attention.k_lin"},
    {v, "blk.{}.attn_v", "transformer.layer.{}.attention.v_lin"},
    {attn_out, "blk.{}.attn_output", "transformer.layer.{}.attention.out_lin"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "transformer.layer.{}.sa_layer_norm"},
    {up, "blk.{}.ffn_up", "transformer.layer.{}.ffn.lin1"},
    {down, "blk.{}.ffn_down", "transformer.layer.{}.ffn.lin2"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "transformer.layer.{}.output_layer_norm"},
    {head_dense, "cls", "pre_classifier"},
    {classifier, "cls.output", "classifier"},
    {mlm_dense, "", "vocab_transform"},
    {mlm_norm, "", "vocab_layer_norm"},
    {mlm_decoder, "", "vocab_projector"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.embedding_norm = c.norm_bias = true;
  c.classifier = {.dense = DenseBefore::texts, .activation = Activation::relu};
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  c.eps = 1e-12f;  // config.json has no key for eps
  make_bert_layers(c);
  read.gguf_says(kArchitecture, "bert");
  add_mlm_head(c, c.layers.front().feed_forward().activation);
}

}  // namespace

const Family distilbert{
    .name = "distilbert", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .keys = kKeys, .configure = configure};

}  // namespace pumice::model::families_in_files::distilbert
