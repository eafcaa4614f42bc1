// Phi 1, 1.5 and 2 (Li et al. 2023) have LayerNorm and biases in all matrix products, also in the head. Attention and feed-forward network
// run in parallel, after one shared norm. Phi 3, 3.5, 4 and 4-mini (Abdin et al. 2024) are a Llama with fused tensors, windows and
// longrope.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::phi {
namespace {

using enum Role;

constexpr std::string_view kGguf2[] = {"phi2"}, kTypes2[] = {"phi"};
constexpr TensorName kNames2[] = {
    {attn_out, "blk.{}.attn_output", "layers.{}.self_attn.dense"},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.fc1"},
    {down, "blk.{}.ffn_down", "layers.{}.mlp.fc2"},
    {final_norm, "output_norm", "final_layernorm"},
};

void configure2(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.head_bias = true;
  read_sizes(read, c, {.eps = 1e-5, .activation = Activation::gelu_tanh});
  read_ropes(read, c, {.partial = 0.5});
  if (read.flag("", "qk_layernorm", false)) read.unsupported("qk_layernorm (a norm of queries and keys in Phi 2) is not run");
  for (Layer& layer : c.layers) {
    layer.join.parallel = true;
    layer.network_norms.before = false;
    layer.feed_forward().gated = false;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
  }
}

constexpr std::string_view kGguf3[] = {"phi3"}, kTypes3[] = {"phi3"};
constexpr TensorName kNames3[] = {
    {q, "blk.{}.attn_qkv", "layers.{}.self_attn.qkv_proj", Fused::qkv},
    {k, "blk.{}.attn_qkv", "layers.{}.self_attn.qkv_proj", Fused::qkv},
    {v, "blk.{}.attn_qkv", "layers.{}.self_attn.qkv_proj", Fused::qkv},
    {gate, "blk.{}.ffn_up", "layers.{}.mlp.gate_up_proj", Fused::gate_up},
    {up, "blk.{}.ffn_up", "layers.{}.mlp.gate_up_proj", Fused::gate_up},
};

// Reads the settings of Phi 3. Phi-3-mini-4k has a window of 2,047, which pumice uses, as transformers does. llama.cpp ignores this window
// (ggml-org/llama.cpp#13676).
void configure3(const Reader& read, Config& c) {
  read_sizes(read, c, {.n_ctx = 4096, .eps = 1e-5});
  read_windows(read, c, {.gguf = GgufWindows::size});
  read_ropes(read, c, {.partial = 1, .gguf_longrope = true});
  read.gguf_lacks({"rope.scaling.type"});  // GGUF files have the tensors of longrope instead
}

}  // namespace

const Family phi2{.name = "phi2",
                  .gguf_names = kGguf2,
                  .model_types = kTypes2,
                  .prefixes = names::kDecoderPrefixes,
                  .names = kNames2,
                  .more_names = names::kLlama,
                  .configure = configure2};

const Family phi3{.name = "phi3",
                  .gguf_names = kGguf3,
                  .model_types = kTypes3,
                  .prefixes = names::kDecoderPrefixes,
                  .names = kNames3,
                  .more_names = names::kLlama,
                  .configure = configure3};

}  // namespace pumice::model::families_in_files::phi
