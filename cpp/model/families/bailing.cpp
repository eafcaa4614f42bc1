// Ling and Ring (inclusionAI 2025). Version 1 is Ling-lite and Ling-plus. Version 2 is Ling-mini, Ling-flash, Ring-mini, Ring-flash and the
// models with a trillion parameters. Version 2 normalises each head of q and k. Its routers have sigmoid scores, groups of experts, and a
// bias for the choice of experts. Both versions have the same model_type. The related models with linear attention (Ring-linear, versions
// 2.5 and 3) belong to other families.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::bailing {
namespace {

using enum Role;

constexpr std::string_view kFolded[] = {"Config::head_columns"};
constexpr std::string_view kGguf[] = {"bailingmoe"}, kGguf2[] = {"bailingmoe2"};
constexpr std::string_view kTypes[] = {"bailing_moe"}, kTypes2[] = {"bailing_moe", "bailing_moe_v2"};
// In GGUF files of version 1, q, k and v are separate tensors.
constexpr TensorName kApart[] = {{q, "blk.{}.attn_q", ""}, {k, "blk.{}.attn_k", ""}, {v, "blk.{}.attn_v", ""}};
constexpr TensorName kOwnNames[] = {
    {token_embedding, "token_embd", "word_embeddings"},
    {q, "blk.{}.attn_qkv", "layers.{}.attention.query_key_value", Fused::qkv},
    {k, "blk.{}.attn_qkv", "layers.{}.attention.query_key_value", Fused::qkv},
    {v, "blk.{}.attn_qkv", "layers.{}.attention.query_key_value", Fused::qkv},
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.attention.query_layernorm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.attention.key_layernorm"},
    {attn_out, "blk.{}.attn_output", "layers.{}.attention.dense"},
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.mlp.gate.expert_bias", Fused::no, false, Bare::both},
    // Tensors of layers that predict draft tokens. pumice does not run these layers.
    {draft_embedding_norm, "blk.{}.nextn.enorm", "layers.{}.enorm"},
    {draft_hidden_norm, "blk.{}.nextn.hnorm", "layers.{}.hnorm"},
    {draft_join, "blk.{}.nextn.eh_proj", "layers.{}.eh_proj"},
    {draft_norm, "blk.{}.layer_output_norm", "layers.{}.final_layernorm"},
};
constexpr auto kNames2 = names::joined(kOwnNames, names::kExpertsAndShared);
constexpr auto kNames = names::joined(kApart, kNames2);

// Reads a mixture. If only one expert is chosen, its weight is not divided by the sum of the weights, which would always give 1. The
// original code does the same.
void read_experts(const Reader& read, Config& c, const MixtureDefaults& defaults) {
  Mixture mixture = read_mixture(read, c, defaults);
  if (mixture.router.chosen == 1) {
    mixture.router.normalised = false;
    mixture.router.floor = 0;
  }
  const std::vector<bool> dense = read_dense_layers(read, c, *defaults.dense);
  set_mixtures(c, mixture, [&](std::size_t layer) { return !dense[layer]; });
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 16, .n_ctx = 16384, .eps = 1e-5});
  read_ropes(read, c, {});
  // If norm_head is true, the columns of the head's matrix are normalised. GGUF files have no such key, because llama.cpp's converter
  // stores the normalised matrix.
  if (read.flag("", "norm_head", false)) c.head_columns = HeadColumns{.floor = 1e-7f};  // the number in the model's original code
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = read.flag("", "use_qkv_bias", false);
    layer.attention().out_bias = read.flag("", "use_bias", !c.gguf);
  }
  read_experts(read, c,
               {.experts = 16,
                .chosen = 2,
                .normalised = true,
                .gguf_normalised = false,
                .shared = SharedDefaults{.key = "num_shared_experts"},
                .dense = DenseDefaults{.first_key = "first_k_dense_replace"}});
  read.gguf_says("expert_weights_scale", 1.0);
}

bool has_in_a_layer(const Reader& read, const Config& c, std::string_view end) {
  for (std::size_t i = 0; i < c.layers.size(); ++i)
    if (read.file().find(str("blk.", i, end))) return true;
  return false;
}

void configure2(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 16, .kv_heads = 4, .head_dim = 128, .n_ctx = 32768});
  read_ropes(read, c, {.theta = 600000, .partial = 1});
  // norm_topk_prob false is refused, because engines differ: the original code divides the experts' weights by their sum nevertheless, and
  // other engines do not.
  if (!c.gguf && !read.flag("", "norm_topk_prob", true)) read.unsupported("norm_topk_prob is false; it must be true in this family");
  if (read.flag("", "norm_head", false)) read.unsupported("norm_head is not run in version 2 of this family; it must be false");
  const bool norms = c.gguf ? has_in_a_layer(read, c, ".attn_q_norm.weight") : read.flag("", "use_qk_norm", true);
  for (Layer& layer : c.layers) {
    if (norms) layer.attention().qk_norm = QkNorm::head;
    layer.attention().qkv_bias = read.flag("", "use_qkv_bias", false);
    layer.attention().out_bias = read.flag("", "use_bias", false);
  }
  read_experts(read, c,
               {.experts = 256,
                .chosen = 8,
                .width = 512,
                .normalised = true,
                .gguf_normalised = false,
                .score = {.key = "score_function", .score = RouteScore::sigmoid},
                .choice_bias = c.gguf ? has_in_a_layer(read, c, ".exp_probs_b.bias") : read.flag("", "moe_router_enable_expert_bias", true),
                .groups = 8,
                .kept = 4,
                .scale = 1,
                .floor = 1e-20f,
                .shared = SharedDefaults{.key = "num_shared_experts", .count = 1},
                .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 1}});
  say_draft_layers(read, c, read.integer("", "num_nextn_predict_layers").value_or(0));
  say_shared_width(read, c);
}

// Returns true if a folder is of version 2. Only version 2 has groups of experts, and norms of q and k. Returns true for any GGUF file,
// because the two versions have different architecture names there.
bool claims2(const Reader& read) {
  if (read.gguf() || read.string("", "model_type") == kTypes2[1] || read.has("", "n_group")) return true;
  for (const std::string_view prefix : names::kDecoderPrefixes)
    if (read.file().find(str(prefix, "layers.0.attention.query_layernorm.weight"))) return true;
  return false;
}

}  // namespace

const Family bailing_moe{.name = "bailing_moe",
                         .gguf_names = kGguf,
                         .model_types = kTypes,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNames,
                         .more_names = names::kLlama,
                         .configure = configure,
                         .pairs_in_gguf = true,
                         .folded_in_gguf = kFolded};

const Family bailing_moe_v2{.name = "bailing_moe_v2",
                            .gguf_names = kGguf2,
                            .model_types = kTypes2,
                            .prefixes = names::kDecoderPrefixes,
                            .names = kNames2,
                            .more_names = names::kLlama,
                            .configure = configure2,
                            .claims = claims2};

}  // namespace pumice::model::families_in_files::bailing
