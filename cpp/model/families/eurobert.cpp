// EuroBERT (Boizard et al. 2025), jina-embeddings-v5 nano: Llama's layers with attention in both directions.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::eurobert {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"eurobert"}, kTypes[] = {"eurobert"};
constexpr TensorName kNames[] = {{head_dense, "cls", "dense"}, {classifier, "cls.output", "classifier"}};

// Reads the classifier of EuroBertForSequenceClassification. The classifier computes the mean of the logits of all rows (late), the logits
// of the mean of all rows (mean), or the logits of the first row (bos).
ClassifierHead read_head(const Reader& read) {
  ClassifierHead head{.dense = true, .activation = Activation::gelu};
  const std::string pooling = read.string("", "classifier_pooling").value_or("late");
  if (pooling != "late" && pooling != "mean" && pooling != "bos")
    read.unsupported("classifier_pooling \"", pooling, "\" is not known for EuroBERT; there are late, mean and bos");
  head.pooling = pooling == "bos" ? PoolKind::cls : PoolKind::mean;
  head.late = pooling == "late";
  return head;
}

void configure(const Reader& read, Config& c) {
  c.has_head = false;
  c.classifier = read_head(read);
  read_sizes(read, c, {.n_ctx = 8192, .eps = 1e-5});
  read_ropes(read, c, {.theta = 250000});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().causal = false;
}

}  // namespace

const Family eurobert{.name = "eurobert",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames,
                      .more_names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::eurobert
