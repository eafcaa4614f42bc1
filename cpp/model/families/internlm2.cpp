// InternLM 2 and 2.5 (Cai et al. 2024) are a Llama with one tensor for q, k and v, ordered by kv head.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::internlm2 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"internlm2"}, kTypes[] = {"internlm2"}, kPrefixes[] = {"model.", ""};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "tok_embeddings"},
    {attn_norm, "blk.{}.attn_norm", "layers.{}.attention_norm"},
    {q, "blk.{}.attn_q", ""},
    {k, "blk.{}.attn_k", ""},
    {v, "blk.{}.attn_v", ""},
    {q, "", "layers.{}.attention.wqkv", Fused::qkv_by_head},
    {k, "", "layers.{}.attention.wqkv", Fused::qkv_by_head},
    {v, "", "layers.{}.attention.wqkv", Fused::qkv_by_head},
    {attn_out, "blk.{}.attn_output", "layers.{}.attention.wo"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.ffn_norm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.feed_forward.w1"},
    {up, "blk.{}.ffn_up", "layers.{}.feed_forward.w3"},
    {down, "blk.{}.ffn_down", "layers.{}.feed_forward.w2"},
    {final_norm, "output_norm", "norm"},
    {head, "output", "output"},
};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_ropes(read, c, {});
  for (Layer& layer : c.layers) layer.attention().qkv_bias = layer.attention().out_bias = read.flag("", "bias", false);
}

}  // namespace

const Family internlm2{.name = "internlm2",
                       .gguf_names = kGguf,
                       .model_types = kTypes,
                       .prefixes = kPrefixes,
                       .names = kNames,
                       .configure = configure,
                       .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::internlm2
