// ELECTRA (Clark et al. 2020), discriminators and generators. Both have BERT's layers, and a generator has an MLM head. If the embeddings
// are narrower than hidden_size, a matrix maps them to hidden_size.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::electra {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"electra"}, kPrefixes[] = {"", "electra."};
constexpr TensorName kNames[] = {
    {embedding_map, "", "embeddings_project"},         {head_dense, "", "classifier.dense"},
    {classifier, "", "classifier.out_proj"},           {mlm_dense, "", "generator_predictions.dense"},
    {mlm_norm, "", "generator_predictions.LayerNorm"}, {mlm_decoder, "", "generator_lm_head"},
};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier = {.dense = DenseBefore::texts, .activation = Activation::gelu};
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  const std::int32_t width = read.size("", "embedding_size", kMaxWidth, 128);
  if (width != c.hidden_size) c.embedding_map = {.width = width};
  add_mlm_head(c);
}

}  // namespace

const Family electra{
    .name = "electra", .model_types = kTypes, .prefixes = kPrefixes, .names = kNames, .more_names = names::kBert, .configure = configure};

}  // namespace pumice::model::families_in_files::electra
