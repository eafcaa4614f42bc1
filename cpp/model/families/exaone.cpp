// EXAONE 3 and 3.5 (LG AI Research 2024) have Llama's layers with other tensor names.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::exaone {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"exaone"}, kTypes[] = {"exaone"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {{"num_hidden_layers", "num_layers"}, {"rms_norm_eps", "layer_norm_epsilon"}};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "wte"},
    {attn_norm, "blk.{}.attn_norm", "h.{}.ln_1"},
    {q, "blk.{}.attn_q", "h.{}.attn.attention.q_proj"},
    {k, "blk.{}.attn_k", "h.{}.attn.attention.k_proj"},
    {v, "blk.{}.attn_v", "h.{}.attn.attention.v_proj"},
    {attn_out, "blk.{}.attn_output", "h.{}.attn.attention.out_proj"},
    {ffn_norm, "blk.{}.ffn_norm", "h.{}.ln_2"},
    {gate, "blk.{}.ffn_gate", "h.{}.mlp.c_fc_0"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.c_fc_1"},
    {down, "blk.{}.ffn_down", "h.{}.mlp.c_proj"},
    {final_norm, "output_norm", "ln_f"},
    {head, "output", "lm_head"},
};

void configure(const Reader& read, Config& c) {
  SizeDefaults defaults{.kv_heads = 8, .n_ctx = 4096, .eps = 1e-5};
  // In published files the activation has the key activation_function, and in files that transformers writes the usual key hidden_act.
  constexpr const char* kPublished = "activation_function";
  if (const auto name = read.string("", kPublished)) defaults.activation = activation_named(read, read.key("", kPublished), *name);
  read_sizes(read, c, defaults);
  read_ropes(read, c, {.theta = 500000});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
}

}  // namespace

const Family exaone{.name = "exaone",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = kPrefixes,
                    .names = kNames,
                    .keys = kKeys,
                    .configure = configure};

}  // namespace pumice::model::families_in_files::exaone
