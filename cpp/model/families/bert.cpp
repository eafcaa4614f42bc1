// BERT (Devlin et al. 2018) and models with the same layers and the same model_type: MiniLM, bge, e5, gte v1, cross-encoders.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::bert {
namespace {

using enum Role;

constexpr TensorName kNames[] = {{head_dense, "cls", "pooler.dense"}, {classifier, "cls.output", "classifier"}};
constexpr std::string_view kGguf[] = {"bert"}, kTypes[] = {"bert"}, kPrefixes[] = {"", "bert."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  add_mlm_head(c, c.layers.front().feed_forward().activation);
  // A GGUF file without token types is a DistilBERT, whose classifier uses relu. Converters write BERT, RoBERTa and DistilBERT with the
  // same GGUF architecture, but BERT and RoBERTa have token types.
  if (c.gguf && !read.file().find("token_types.weight")) c.classifier.activation = Activation::relu;
}

}  // namespace

const Family bert{.name = "bert",
                  .gguf_names = kGguf,
                  .model_types = kTypes,
                  .prefixes = kPrefixes,
                  .names = kNames,
                  .more_names = names::kBertAndMlm,
                  .configure = configure};

}  // namespace pumice::model::families_in_files::bert
