// MiniCPM 1, 2 and 4 (Hu et al. 2024): a Llama with multipliers for embeddings, branches and logits.
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::minicpm {
namespace {

constexpr std::string_view kGguf[] = {"minicpm"}, kTypes[] = {"minicpm"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_ropes(read, c, {.interleaved = c.gguf});
  if (read.integer("", "num_experts").value_or(0) > 0) read.unsupported("a mixture of experts (num_experts) is not run yet");
  if (!c.gguf && read.object(read.key("", "sparse_config"))) read.unsupported("sparse attention (sparse_config) is not run");
  const double root = std::sqrt(static_cast<double>(c.layers.size())), hidden = c.hidden_size;
  double branch = 0, logits = 0;
  if (c.gguf) {  // files without these keys are of MiniCPM 1, whose numbers are 12, 1.4 and 256
    c.embedding_scale = static_cast<float>(read.positive("embedding_scale", "", 12));
    branch = read.positive("residual_scale", "", 1.4 / root);
    logits = 1 / read.positive("logit_scale", "", hidden / 256);
  } else {
    c.embedding_scale = static_cast<float>(read.positive("", "scale_emb"));
    branch = read.positive("", "scale_depth") / root;
    logits = read.positive("", "dim_model_base") / hidden;
  }
  c.logit_scale = static_cast<float>(logits);
  for (Layer& layer : c.layers) layer.join.scale = static_cast<float>(branch);
}

}  // namespace

const Family minicpm{.name = "minicpm",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::minicpm
