// StableLM 3B and 2 (Bellagente et al. 2024) and Zephyr 3B are a Llama with LayerNorm and a rope that rotates a part of each head. An
// option runs attention and feed-forward network in parallel, after one shared norm.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::stablelm {
namespace {

constexpr std::string_view kGguf[] = {"stablelm"}, kTypes[] = {"stablelm"};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = true;
  read_sizes(read, c, {.kv_heads = 32, .n_ctx = 4096, .eps = 1e-5});
  read_ropes(read, c, {.partial = 0.25});
  // StableLM 2 12B has a LayerNorm on queries and keys, with different weights for each head. pumice does not run such norms.
  const bool norms = c.gguf ? read.file().find("blk.0.attn_q_norm.weight") != nullptr : read.flag("", "qk_layernorm", false);
  if (norms) read.unsupported("qk_layernorm (a norm for each head of queries and keys, with weights of its own) is not run");
  // In GGUF files, use_parallel_residual is not reliable, because the converter writes "true" if config.json lacks the key, although a
  // missing key means false. So the code looks, as llama.cpp does, for the norm that parallel layers do not have, ffn_norm.
  const auto without_norm = [&](std::size_t layer) { return !read.file().find(str("blk.", layer, ".ffn_norm.weight")); };
  bool parallel = read.flag("", "use_parallel_residual", false);
  if (c.gguf) {
    // Branches are parallel only if all layers lack ffn_norm. If only some layers lack it, the file is incomplete, and reading its weights
    // fails.
    parallel = true;
    for (std::size_t layer = 0; layer < c.layers.size(); ++layer) parallel = parallel && without_norm(layer);
  }
  read.gguf_says("use_parallel_residual", true);
  for (Layer& layer : c.layers) {
    layer.join.parallel = parallel;
    layer.network_norms.before = !parallel;
    layer.attention().qkv_bias = read.flag("", "use_qkv_bias", false);
  }
}

}  // namespace

const Family stablelm{.name = "stablelm",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = names::kLlama,
                      .configure = configure};

}  // namespace pumice::model::families_in_files::stablelm
