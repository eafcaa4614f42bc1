// ALBERT (Lan et al. 2020): all layers share the weights of one layer. Embeddings are narrower than hidden_size, and a matrix maps them to
// hidden_size.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::albert {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"albert"}, kPrefixes[] = {"", "albert."};
constexpr TensorName kNames[] = {
    {token_embedding, "", "embeddings.word_embeddings"},
    {position_embedding, "", "embeddings.position_embeddings"},
    {type_embedding, "", "embeddings.token_type_embeddings"},
    {embedding_norm, "", "embeddings.LayerNorm"},
    {embedding_map, "", "encoder.embedding_hidden_mapping_in"},
    {q, "", "encoder.albert_layer_groups.0.albert_layers.0.attention.query"},
    {k, "", "encoder.albert_layer_groups.0.albert_layers.0.attention.key"},
    {v, "", "encoder.albert_layer_groups.0.albert_layers.0.attention.value"},
    {attn_out, "", "encoder.albert_layer_groups.0.albert_layers.0.attention.dense"},
    {attn_residual_norm, "", "encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm"},
    {up, "", "encoder.albert_layer_groups.0.albert_layers.0.ffn"},
    {down, "", "encoder.albert_layer_groups.0.albert_layers.0.ffn_output"},
    {ffn_residual_norm, "", "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"},
    {head_dense, "", "pooler"},
    {classifier, "", "classifier"},
    {mlm_dense, "", "predictions.dense"},
    {mlm_norm, "", "predictions.LayerNorm"},
    {mlm_decoder, "", "predictions.decoder"},
    {mlm_decoder, "", "predictions"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu_tanh});
  for (const char* key : {"num_hidden_groups", "inner_group_num"}) {
    if (const std::int64_t groups = read.integer("", key).value_or(1); groups != 1)
      read.unsupported(key, " is ", groups, "; layers that differ are not run: 1 is needed");
  }
  make_bert_layers(c);
  c.embedding_map = {.width = read.size("", "embedding_size", kMaxWidth, 128)};
  add_mlm_head(c, c.layers.front().feed_forward().activation);
}

}  // namespace

const Family albert{.name = "albert", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .configure = configure};

}  // namespace pumice::model::families_in_files::albert
