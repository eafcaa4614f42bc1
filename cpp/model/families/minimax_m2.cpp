// MiniMax-M2 (MiniMax 2025) has experts in all layers. q and k are normalised over all heads as one vector, and rope rotates the first half
// of each head.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::minimax_m2 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"minimax-m2"}, kTypes[] = {"minimax_m2"};
constexpr TensorName kNames[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.block_sparse_moe.gate"},
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.block_sparse_moe.e_score_correction_bias", Fused::no, false, Bare::both},
    {expert_gate, "blk.{}.ffn_gate_exps", "layers.{}.block_sparse_moe.experts.{expert}.w1"},
    {expert_up, "blk.{}.ffn_up_exps", "layers.{}.block_sparse_moe.experts.{expert}.w3"},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.block_sparse_moe.experts.{expert}.w2"},
};

// Returns rotary_dim / head_dim, the default of partial_rotary_factor. Published files have rotary_dim, but no partial_rotary_factor.
double turned_part(const Reader& read, std::int32_t head_dim) {
  return static_cast<double>(read.size("", "rotary_dim", head_dim, head_dim)) / head_dim;
}

// Throws for settings that transformers ignores but that the models' own code on the hub uses.
void refuse_switches(const Reader& read) {
  for (const char* key : {"use_qk_norm", "use_routing_bias"})
    if (!read.gguf() && !read.flag("", key, true)) read.unsupported(read.key("", key), " false is not run");
  if (const auto type = read.string("", "qk_norm_type"); type && *type != "per_layer")
    read.unsupported(read.key("", "qk_norm_type"), " \"", *type, "\" is not run; per_layer is");
  if (read.integer("", "shared_intermediate_size").value_or(0) > 0)
    read.unsupported(read.key("", "shared_intermediate_size"), ": an expert of all tokens is not run in this family");
}

void configure(const Reader& read, Config& c) {
  refuse_switches(read);
  read_sizes(read, c, {.heads = 48, .kv_heads = 8, .head_dim = 128, .n_ctx = 196608});
  read_ropes(read, c, {.theta = 5e6, .partial = turned_part(read, c.layers.front().attention().head_dim)});
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::whole;
  read_mixtures(read, c,
                {.experts_key = "num_local_experts",
                 .width_key = "",
                 .experts = 256,
                 .chosen = 8,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true});
}

}  // namespace

const Family minimax_m2{.name = "minimax_m2",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = names::kDecoderPrefixes,
                        .names = kNames,
                        .more_names = names::kLlama,
                        .configure = configure};

}  // namespace pumice::model::families_in_files::minimax_m2
