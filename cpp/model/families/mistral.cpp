// Mistral 7B (Jiang et al. 2023), Nemo, Small 3, Codestral, Devstral. Their GGUF files say "llama".
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files {
namespace {

constexpr std::string_view kTypes[] = {"mistral"};

// MistralConfig: a config.json without sliding_window means 4,096; null means none.
void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 8, .n_ctx = 131072});
  read_windows(read, c, {.window = 4096});
  read_ropes(read, c, {});
}

}  // namespace

extern const Family mistral;
const Family mistral{.name = "mistral", .model_types = kTypes, .prefixes = names::kDecoderPrefixes, .names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files
