// Megatron-BERT (Shoeybi et al. 2019) is BERT with norms before the branches and not after them, with one norm after all layers, and
// without a norm of the embeddings.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::megatron_bert {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {attn_norm, "", "encoder.layer.{}.attention.ln"},
    {ffn_norm, "", "encoder.layer.{}.ln"},
    {final_norm, "", "encoder.ln"},
    {head_dense, "", "pooler.dense"},
    {classifier, "", "classifier"},
};
constexpr std::string_view kTypes[] = {"megatron-bert"}, kPrefixes[] = {"", "bert."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = false;
  c.learned_positions = c.token_types = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  add_mlm_head(c, c.layers.front().feed_forward().activation);
  for (Layer& layer : c.layers) layer.mixer_norms = layer.network_norms = {};
}

}  // namespace

const Family megatron_bert{.name = "megatron_bert",
                           .model_types = kTypes,
                           .prefixes = kPrefixes,
                           .names = kNames,
                           .more_names = names::kBertAndMlm,
                           .configure = configure};

}  // namespace pumice::model::families_in_files::megatron_bert
