// RoBERTa (Liu et al. 2019), CamemBERT (Martin et al. 2020) and XLM-R (Conneau et al. 2020) have BERT's layers. The first token has the
// position pad_token_id + 1. There is a single token type, whose embedding is added to every token. The models' GGUF files have the
// architecture name "bert".
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::roberta {
namespace {

constexpr std::string_view kTypes[] = {"roberta", "camembert", "xlm-roberta"}, kPrefixes[] = {"", "roberta."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.position_offset = position_after_padding(read, c);
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  read.gguf_says(kArchitecture, "bert");
  add_mlm_head(c);
}

}  // namespace

const Family roberta{.name = "roberta",
                     .model_types = kTypes,
                     .prefixes = kPrefixes,
                     .names = names::kBert,
                     .more_names = names::kRobertaHeads,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::roberta
