// Llama 1 to 3.3 (Touvron et al. 2023; Grattafiori et al. 2024) and models with the same layers and the same model_type: SmolLM, Yi, Falcon
// 3, R1-Distill.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::llama {
namespace {

constexpr std::string_view kGguf[] = {"llama", "llama-embed"}, kTypes[] = {"llama", "llama_bidirec"};

// Sets up Llama-Embed-Nemotron (2025), a Llama 3.1 with bidirectional attention. Its config.json has the kind of pooling.
void see_both_ways(const Reader& read, Config& c) {
  for (Layer& layer : c.layers) layer.attention().causal = false;
  read.gguf_says(kArchitecture, std::string(kGguf[1]));
  constexpr std::pair<std::string_view, PoolKind> kinds[] = {{"avg", PoolKind::mean}, {"cls", PoolKind::cls}, {"last", PoolKind::last}};
  const auto said = read.string("", "pooling");
  if (!said) return;
  for (const auto& [name, kind] : kinds) {
    if (*said == name) c.pooling = kind;
  }
  if (!c.pooling) read.unsupported("pooling \"", *said, "\" is not known for llama_bidirec; there are avg, cls and last");
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  // Only windows in GGUF files are read. A GGUF file with the name "llama" may be a Mistral with a window. A Llama's config.json may have a
  // key for a window, too, but transformers ignores it.
  if (c.gguf) read_windows(read, c);
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  if (read.text(read.gguf() ? "general.architecture" : "model_type") == (read.gguf() ? kGguf[1] : kTypes[1])) see_both_ways(read, c);
}

}  // namespace

const Family llama{.name = "llama",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kLlama,
                   .configure = configure,
                   .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::llama
