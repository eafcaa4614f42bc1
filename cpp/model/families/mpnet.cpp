// MPNet (Song et al. 2020) has RoBERTa's positions, no token types, and T5's learned bias on scores, which depends on the distance between
// query and key. All layers share this bias.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mpnet {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"mpnet"}, kPrefixes[] = {"", "mpnet."};
constexpr TensorName kNames[] = {
    {token_embedding, "", "embeddings.word_embeddings"},
    {position_embedding, "", "embeddings.position_embeddings"},
    {embedding_norm, "", "embeddings.LayerNorm"},
    {position_bias, "", "encoder.relative_attention_bias"},
    {q, "", "encoder.layer.{}.attention.attn.q"},
    {k, "", "encoder.layer.{}.attention.attn.k"},
    {v, "", "encoder.layer.{}.attention.attn.v"},
    {attn_out, "", "encoder.layer.{}.attention.attn.o"},
    {attn_residual_norm, "", "encoder.layer.{}.attention.LayerNorm"},
    {up, "", "encoder.layer.{}.intermediate.dense"},
    {down, "", "encoder.layer.{}.output.dense"},
    {ffn_residual_norm, "", "encoder.layer.{}.output.LayerNorm"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.position_offset = 2;  // as in transformers, whatever pad_token_id is
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  make_bert_layers(c);
  add_mlm_head(c);
  read_position_buckets(read, c, {.count = 32, .max_distance = 128});
  if (c.position_buckets->count != 32)  // transformers computes with 32 buckets, whatever the size of the table
    read.unsupported("relative_attention_num_buckets is ", c.position_buckets->count, "; MPNet runs with 32");
}

}  // namespace

const Family mpnet{.name = "mpnet",
                   .model_types = kTypes,
                   .prefixes = kPrefixes,
                   .names = kNames,
                   .more_names = names::kRobertaHeads,
                   .configure = configure};

}  // namespace pumice::model::families_in_files::mpnet
