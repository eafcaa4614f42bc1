// nomic-bert (Nussbaum et al. 2024) is BERT with rope, a gated feed-forward network, and no biases in matrix products. Models of this kind
// are nomic-embed-text v1 and v1.5, arctic-embed-m-long and CodeRankEmbed. nomic-embed-text v2 (Nussbaum and Duderstadt 2025) has networks
// without a gate, biases, and experts in every second layer.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"
#include "model/token_types.h"

namespace pumice::model::families_in_files::nomic_bert {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {type_embedding, "token_types", "embeddings.token_type_embeddings"},
    {embedding_norm, "token_embd_norm", "emb_ln"},
    {q, "blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv", Fused::qkv},
    {k, "blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv", Fused::qkv},
    {v, "blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "encoder.layers.{}.attn.out_proj"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "encoder.layers.{}.norm1"},
    {gate, "blk.{}.ffn_gate", "encoder.layers.{}.mlp.fc12"},
    {up, "blk.{}.ffn_up", "encoder.layers.{}.mlp.fc11"},
    {down, "blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layers.{}.norm2"},
    {head_dense, "cls", "pooler.dense"},
    {classifier, "cls.output", "classifier"},
};
constexpr std::string_view kGguf[] = {"nomic-bert"}, kTypes[] = {"nomic_bert"}, kPrefixes[] = {"", "nomic_bert.", "bert."};
// The keys of config.json that the models' own Python code on the Hugging Face hub reads. transformers itself writes the usual keys.
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embd"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {"intermediate_size", "n_inner"},
    {"max_position_embeddings", "n_positions"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"rope_theta", "rotary_emb_base"},
    {"partial_rotary_factor", "rotary_emb_fraction"},
};

bool has_experts(const Reader& read) { return read.gguf() || read.integer("", "moe_every_n_layers").value_or(0) > 0; }

// Throws for settings that pumice does not run. Of all values of activation_function, pumice runs only `activation`.
void refuse_what_is_not_run(const Reader& read, std::string_view activation) {
  for (const char* key : {"causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"}) {
    if (read.flag("", key, false)) read.unsupported(key, " is true: not run for nomic-bert");
  }
  if (read.number("", "rotary_emb_scale_base")) read.unsupported("rotary_emb_scale_base (xPos) is not run");
  if (const auto kind = read.string("", "activation_function"); kind && *kind != activation)
    read.unsupported("activation_function \"", *kind, "\" is not run for nomic-bert; \"", activation, "\" is");
}

// Reads the settings that models with and without experts have in common.
void read_encoder(const Reader& read, Config& c, const SizeDefaults& sizes, double theta) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.embedding_norm = c.norm_bias = true;
  c.classifier.dense = DenseBefore::texts;
  c.token_types = tells_types(read, kPrefixes, "embeddings.token_type_embeddings.weight");
  read_sizes(read, c, sizes);
  read_ropes(read, c, {.theta = theta, .partial = 1});
  // If the file has a scaling factor, texts that are longer than those in training (2,048 positions) get a larger rope base (dynamic NTK).
  if (read.number("", "rotary_scaling_factor")) {
    const std::int64_t trained =
        read.in_range(read.integer("", "max_trained_positions").value_or(2048), 1, kMaxContext, read.key("", "max_trained_positions"));
    for (RopeTable& rope : c.ropes) {
      rope.original = trained;
      rope.base = static_cast<float>(read.positive("", "rope_theta", theta));
      rope.growth = static_cast<float>(read.positive("", "rotary_scaling_factor", 1));
    }
  }
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
  }
}

void configure(const Reader& read, Config& c) {
  if (read.integer("", "num_experts").value_or(0) > 0)
    read.unsupported("num_experts is above 0 for nomic-bert, so moe_every_n_layers must be, too");
  refuse_what_is_not_run(read, "swiglu");
  read_encoder(read, c, {.n_ctx = 2048, .eps = 1e-12}, 1000);
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = layer.attention().out_bias = read.flag("", "qkv_proj_bias", false);
    layer.feed_forward().bias = read.flag("", "mlp_fc1_bias", false);
  }
  add_mlm_head(c, c.layers.front().feed_forward().activation);
}

// w1 has the rows of all experts' first matrices, and w2 the rows of all experts' transposed second matrices. llama.cpp does not add a bias
// to the experts' sum, so GGUF files lack this bias.
constexpr TensorName kMoeOwnNames[] = {
    {up, "blk.{}.ffn_up", "encoder.layers.{}.mlp.fc1"},
    {router, "blk.{}.ffn_gate_inp", "encoder.layers.{}.mlp.router.layer"},
    {expert_up, "blk.{}.ffn_up_exps", "encoder.layers.{}.mlp.experts.mlp.w1", Fused::no, false, Bare::safetensors},
    {expert_down, "blk.{}.ffn_down_exps", "encoder.layers.{}.mlp.experts.mlp.w2", Fused::no, true, Bare::safetensors},
    {expert_sum_bias, "", "encoder.layers.{}.mlp.experts.bias", Fused::no, false, Bare::safetensors},
};
constexpr std::string_view kMoeGguf[] = {"nomic-bert-moe"}, kFolded[] = {"Mixture::combine"};

// Throws for settings of the training code that the released model does not use.
void refuse_other_experts(const Reader& read) {
  if (read.flag("", "moe_normalize_expert_weights", false))
    read.unsupported("moe_normalize_expert_weights is true: not run for nomic-bert");
  if (read.integer("", "num_shared_experts").value_or(0) != 0)
    read.unsupported("num_shared_experts: shared experts are not run for nomic-bert");
  if (read.flag("", "expert_choice_router", false))
    read.unsupported("expert_choice_router is true: experts that choose their tokens are not run");
  if (read.integer("", "ffn_div").value_or(1) != 1) read.unsupported("ffn_div other than 1 is not run for nomic-bert");
}

void configure_moe(const Reader& read, Config& c) {
  refuse_what_is_not_run(read, "gelu");
  refuse_other_experts(read);
  read_encoder(read, c, {.n_ctx = 2048, .eps = 1e-5, .activation = Activation::gelu}, 10000);
  const bool fc1 = read.biases("blk.0.ffn_up.bias", "mlp_fc1_bias", true), fc2 = read.biases("blk.0.ffn_down.bias", "mlp_fc2_bias", true);
  if (fc1 != fc2)
    read.unsupported(c.gguf ? "blk.0.ffn_up.bias and blk.0.ffn_down.bias: only one of them is there, which is"
                            : "mlp_fc1_bias and mlp_fc2_bias differ, which is",
                     " not run for nomic-bert");
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = layer.attention().out_bias = read.biases("blk.0.attn_qkv.bias", "qkv_proj_bias", true);
    layer.feed_forward().gated = false;
    layer.feed_forward().activation = Activation::gelu;
    layer.feed_forward().bias = fc1;
  }
  read_mixtures(read, c,
                {.chosen_key = "moe_top_k",
                 .width_key = "intermediate_size",
                 .normalised_key = "",
                 .normalised = false,
                 .gguf_normalised = false,
                 .dense = DenseDefaults{.every_key = "moe_every_n_layers"}});
  read.gguf_lacks({"expert_feed_forward_length"});
  for (Layer& layer : c.layers)
    if (Mixture* mixture = layer.if_mixture(); mixture && !c.gguf) mixture->combine = Combine::biased;
  if (c.gguf)
    c.notes.push_back(
        "GGUF files lack the bias of the experts' sum, which llama.cpp's converter leaves out: vectors differ from the "
        "original's unless it is zero");
}

}  // namespace

const Family nomic_bert{.name = "nomic_bert",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = kPrefixes,
                        .names = kNames,
                        .more_names = names::kBertMlm,
                        .keys = kKeys,
                        .configure = configure};
const Family nomic_bert_moe{.name = "nomic_bert_moe",
                            .gguf_names = kMoeGguf,
                            .model_types = kTypes,
                            .prefixes = kPrefixes,
                            .names = kMoeOwnNames,
                            .more_names = kNames,
                            .keys = kKeys,
                            .configure = configure_moe,
                            .claims = has_experts,
                            .folded_in_gguf = kFolded};

}  // namespace pumice::model::families_in_files::nomic_bert
