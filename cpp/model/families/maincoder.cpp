// Maincoder 1B (Maincode 2026) is a Llama that normalises each head of q and k after rope. Rope rotates pairs of neighbouring columns, in
// folders and in GGUF files alike.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::maincoder {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"maincoder"}, kTypes[] = {"maincoder"};
constexpr KeyName kKeys[] = {{"intermediate_size", "intermediate_size_mlp"}};
constexpr TensorName kNames[] = {
    {gate, "blk.{}.ffn_gate", "layers.{}.feed_forward.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.feed_forward.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.feed_forward.down_proj"},
};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 4, .head_dim = 96, .eps = 1e-5});
  read_ropes(read, c, {.theta = 1e6, .interleaved = true});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  if (!read.flag("", "use_qk_norm", true)) return;
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head_after_rope;
}

}  // namespace

const Family maincoder{.name = "maincoder",
                       .gguf_names = kGguf,
                       .model_types = kTypes,
                       .prefixes = names::kDecoderPrefixes,
                       .names = kNames,
                       .more_names = names::kLlama,
                       .keys = kKeys,
                       .configure = configure};

}  // namespace pumice::model::families_in_files::maincoder
