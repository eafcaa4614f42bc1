// Mixtral 8x7B and 8x22B (Jiang et al. 2024) are a Mistral whose networks are mixtures of experts. Their GGUF files have the architecture
// name "llama", like those of other Llamas with experts.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::mixtral {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"llama"}, kTypes[] = {"mixtral"};
constexpr TensorName kNames[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.block_sparse_moe.gate"},
    {router, "", "layers.{}.mlp.gate"},
    {expert_gate, "blk.{}.ffn_gate_exps", "layers.{}.block_sparse_moe.experts.{expert}.w1"},
    {expert_up, "blk.{}.ffn_up_exps", "layers.{}.block_sparse_moe.experts.{expert}.w3"},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.block_sparse_moe.experts.{expert}.w2"},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.mlp.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_down, "", "layers.{}.mlp.experts.down_proj", Fused::no, false, Bare::safetensors},
};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.kv_heads = 8, .n_ctx = 131072, .eps = 1e-5});
  read_windows(read, c);
  read_ropes(read, c, {.theta = c.gguf ? 1e4 : 1e6});
  set_mixtures(c, read_mixture(read, c, {.experts_key = "num_local_experts", .width_key = "", .experts = 8, .chosen = 2}),
               [](std::size_t) { return true; });
  read.gguf_lacks({"expert_feed_forward_length"});
}

// Returns true if the file is a Mixtral. A GGUF file with the architecture name "llama" is one if it has a number of experts, or a router
// in its first layer.
bool claims(const Reader& read) {
  return !read.gguf() || read.integer("expert_count", "").value_or(0) != 0 || read.file().find("blk.0.ffn_gate_inp.weight");
}

}  // namespace

const Family mixtral{.name = "mixtral",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure,
                     .claims = claims,
                     .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::mixtral
