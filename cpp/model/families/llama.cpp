// Llama 1 to 3.3 (Touvron et al. 2023; Grattafiori et al. 2024) and what shares its layers and its model_type: SmolLM, Yi, Falcon 3,
// R1-Distill.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files {
namespace {

constexpr std::string_view kGguf[] = {"llama"}, kTypes[] = {"llama"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_windows(read, c);
  read_ropes(read, c, {.interleaved = c.gguf});  // GGUF writers permute q and k so that pairs are neighbours
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
}

}  // namespace

const Family llama{.name = "llama",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kLlama,
                   .configure = configure};

}  // namespace pumice::model::families_in_files
