// IQuest-Coder V1 (IQuest Lab 2026) is a Llama with a head_dim that is not hidden_size divided by the number of heads. Its GGUF files have
// Llama's architecture name, so the family llama reads them.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::iquestcoder {
namespace {

constexpr std::string_view kTypes[] = {"iquestcoder"};

void configure(const Reader& read, Config& c) {
  if (read.number("", "clip_qkv")) read.unsupported("clip_qkv (limits of q, k and v) is not run for IQuest-Coder");
  if (read.flag("", "use_sliding_window", false)) read.unsupported("use_sliding_window is not run for IQuest-Coder");
  read_sizes(read, c, {.kv_heads = 8, .head_dim = 128, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  read.gguf_says(kArchitecture, "llama");
}

}  // namespace

const Family iquestcoder{.name = "iquestcoder",
                         .model_types = kTypes,
                         .prefixes = names::kDecoderPrefixes,
                         .names = names::kLlama,
                         .configure = configure,
                         .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::iquestcoder
