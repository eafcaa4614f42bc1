// Trinity (Arcee AI 2025) has norms before and after each branch, a sigmoid gate on the output of attention, experts, and shared experts.
// Three of four layers have a window, and only these layers have rope.
#include <cmath>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::afmoe {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"afmoe"}, kTypes[] = {"afmoe"};
constexpr TensorName kOwnNames[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {attn_gate, "blk.{}.attn_gate", "layers.{}.self_attn.gate_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.pre_mlp_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_mlp_layernorm"},
    {router, "blk.{}.ffn_gate_inp", "layers.{}.mlp.router.gate"},
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.mlp.expert_bias", Fused::no, false, Bare::both},
};
constexpr auto kNames = names::joined(kOwnNames, names::kExpertsAndShared);
constexpr KeyName kKeys[] = {{"sliding_window_pattern", "global_attn_every_n_layers"}};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 16, .head_dim = 128, .n_ctx = 16384, .eps = 1e-5});
  read_windows(read, c, {.window = c.gguf ? 0 : 1024, .full_every = 4, .gguf = GgufWindows::size});
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    // Only layers with Layer::windowed have rope, as in llama.cpp. The flag is true for three of four layers, even if the file has no
    // windows.
    if (!layer.windowed) layer.attention().rope = -1;
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().gate = OutputGate{};
    layer.mixer_norms.branch = layer.network_norms.branch = true;
  }
  // GGUF files have no mup_enabled, because llama.cpp multiplies the embeddings of all models of this family by sqrt(hidden_size).
  if (c.gguf || read.flag("", "mup_enabled", false)) c.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  read_mixtures(read, c,
                {.experts = 64,
                 .chosen = 6,
                 .width = 1408,
                 .normalised_key = "route_norm",
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.key = "score_func", .score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale_key = "route_scale",
                 .scale = 1,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.key = "num_shared_experts", .count = 2},
                 .dense = DenseDefaults{.first_key = "num_dense_layers", .first = 1}});
}

}  // namespace

const Family afmoe{.name = "afmoe",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames,
                   .more_names = names::kLlama,
                   .keys = kKeys,
                   .configure = configure};

}  // namespace pumice::model::families_in_files::afmoe
