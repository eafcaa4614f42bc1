// RoBERTa-PreLayerNorm (efficient_mlm, Wettig et al. 2022) is RoBERTa with norms before the branches and not after them.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::roberta_prelayernorm {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {token_embedding, "", "embeddings.word_embeddings"},
    {position_embedding, "", "embeddings.position_embeddings"},
    {type_embedding, "", "embeddings.token_type_embeddings"},
    {embedding_norm, "", "embeddings.LayerNorm"},
    {attn_norm, "", "encoder.layer.{}.attention.LayerNorm"},
    {q, "", "encoder.layer.{}.attention.self.query"},
    {k, "", "encoder.layer.{}.attention.self.key"},
    {v, "", "encoder.layer.{}.attention.self.value"},
    {attn_out, "", "encoder.layer.{}.attention.output.dense"},
    {ffn_norm, "", "encoder.layer.{}.intermediate.LayerNorm"},
    {up, "", "encoder.layer.{}.intermediate.dense"},
    {down, "", "encoder.layer.{}.output.dense"},
    {final_norm, "", "LayerNorm"},
};
constexpr std::string_view kTypes[] = {"roberta-prelayernorm"}, kPrefixes[] = {"", "roberta_prelayernorm."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.position_offset = position_after_padding(read, c);
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  add_mlm_head(c);
  for (Layer& layer : c.layers) layer.mixer_norms = layer.network_norms = {};
}

}  // namespace

const Family roberta_prelayernorm{.name = "roberta_prelayernorm",
                                  .model_types = kTypes,
                                  .prefixes = kPrefixes,
                                  .names = kNames,
                                  .more_names = names::kRobertaHeads,
                                  .configure = configure};

}  // namespace pumice::model::families_in_files::roberta_prelayernorm
