// XLM-R XL and XXL (Goyal et al. 2021) are XLM-R with norms before the branches and not after them, and without a norm of the embeddings.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::xlm_roberta_xl {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {attn_norm, "", "encoder.layer.{}.attention.self_attn_layer_norm"},
    {ffn_norm, "", "encoder.layer.{}.LayerNorm"},
    {final_norm, "", "encoder.LayerNorm"},
    {head_dense, "", "classifier.dense"},
    {classifier, "", "classifier.out_proj"},
};
constexpr std::string_view kTypes[] = {"xlm-roberta-xl"}, kPrefixes[] = {"", "roberta."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = false;
  c.learned_positions = c.token_types = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.position_offset = position_after_padding(read, c);
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 514, .eps = 1e-5, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  add_mlm_head(c);
  for (Layer& layer : c.layers) layer.mixer_norms = layer.network_norms = {};
}

}  // namespace

const Family xlm_roberta_xl{.name = "xlm_roberta_xl",
                            .model_types = kTypes,
                            .prefixes = kPrefixes,
                            .names = kNames,
                            .more_names = names::kBertAndRobertaMlm,
                            .configure = configure};

}  // namespace pumice::model::families_in_files::xlm_roberta_xl
