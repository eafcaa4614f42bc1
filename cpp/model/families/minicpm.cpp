// MiniCPM 1, 2 and 4 (Hu et al. 2024) are a Llama whose embeddings, branches and logits are multiplied by numbers. MiniCPM 3 has these
// multipliers and latent attention.
#include <cmath>

#include "model/families/names.h"
#include "model/latent_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::minicpm {
namespace {

constexpr std::string_view kGguf[] = {"minicpm"}, kTypes[] = {"minicpm"};

void refuse_parts(const Reader& read) {
  if (read.integer("", "num_experts").value_or(0) > 0) read.unsupported("a mixture of experts (num_experts) is not run in this family");
  if (!read.gguf() && read.object(read.key("", "sparse_config"))) read.unsupported("sparse attention (sparse_config) is not run");
}

void configure(const Reader& read, Config& c) {
  refuse_parts(read);
  read_sizes(read, c);
  read_ropes(read, c, {.gguf_longrope = true});
  const double root = std::sqrt(static_cast<double>(c.layers.size())), hidden = c.hidden_size;
  double branch = 0, logits = 0;
  if (c.gguf) {  // files without these keys are MiniCPM 1, whose multipliers are 12, 1.4 and 256
    c.embedding_scale = static_cast<float>(read.positive("embedding_scale", "", 12));
    branch = read.positive("residual_scale", "", 1.4 / root);
    logits = 1 / read.positive("logit_scale", "", hidden / 256);
  } else {
    c.embedding_scale = static_cast<float>(read.positive("", "scale_emb"));
    branch = read.positive("", "scale_depth") / root;
    logits = read.positive("", "dim_model_base") / hidden;
  }
  read.gguf_says("embedding_scale", c.embedding_scale);
  read.gguf_says("residual_scale", branch);
  read.gguf_says("logit_scale", 1 / logits);
  c.logit_scale = static_cast<float>(logits);
  for (Layer& layer : c.layers) layer.join.scale = static_cast<float>(branch);
}

// Reads the settings of MiniCPM 3. GGUF files have no keys for the three multipliers (of embeddings, branches and logits), so the defaults
// of the configuration class are used.
void configure3(const Reader& read, Config& c) {
  refuse_parts(read);
  read_latent_sizes(read, c,
                    {.sizes = {.heads = 40, .n_ctx = 32768, .eps = 1e-5},
                     .latent_dim = 256,
                     .q_rank = 768,
                     .plain_dim = 64,
                     .rope_dim = 32,
                     .value_dim = 0,
                     .gguf_longrope = true,
                     .interleaved = false,
                     .key_length = "attention.key_length",
                     .value_length = "attention.value_length"});
  read_mlp_bias(read, c);
  const double root = std::sqrt(static_cast<double>(c.layers.size())), hidden = c.hidden_size;
  // Returns the number at `key`, `otherwise` if the key is missing, or `none` if the value is null. `none` makes the multiplier 1.
  const auto said = [&](const char* key, double otherwise, double none) {
    return read.has("", key) && !read.number("", key) ? none : read.positive("", key, otherwise);
  };
  c.embedding_scale = static_cast<float>(c.gguf ? 12 : read.positive("", "scale_emb", 12));
  c.logit_scale = static_cast<float>((c.gguf ? 256 : said("dim_model_base", 256, hidden)) / hidden);
  const double branch = (c.gguf ? 1.4 : said("scale_depth", 1.4, root)) / root;
  for (Layer& layer : c.layers) layer.join.scale = static_cast<float>(branch);
}

constexpr std::string_view kGguf3[] = {"minicpm3"}, kTypes3[] = {"minicpm3"};
// GGUF files of this family have the matrices for keys and for values in one tensor, as folders do, because llama.cpp's converter does not
// split kv_b_proj.
constexpr TensorName kNames3[] = {
    {Role::latent_key, "blk.{}.attn_kv_b", "layers.{}.self_attn.kv_b_proj", Fused::latent_up},
    {Role::latent_value, "blk.{}.attn_kv_b", "layers.{}.self_attn.kv_b_proj", Fused::latent_up},
};
constexpr auto kMoreNames3 = names::joined(names::kLatent, names::kLlama);

}  // namespace

const Family minicpm3{.name = "minicpm3",
                      .gguf_names = kGguf3,
                      .model_types = kTypes3,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames3,
                      .more_names = kMoreNames3,
                      .configure = configure3};

const Family minicpm{.name = "minicpm",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure,
                     .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::minicpm
