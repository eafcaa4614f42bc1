// nomic-bert (Nussbaum et al. 2024): nomic-embed-text v1 and v1.5, arctic-embed-m-long, CodeRankEmbed. BERT with rope, a gated feed-forward
// network, and no biases in matrix products. The mixture of experts (v2) is not run.
#include "model/families/names.h"
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
// Keys of the config.json files on the Hugging Face hub, which belong to Python code beside the weights. Files that transformers itself
// writes have its usual keys.
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

void refuse_what_is_not_run(const Reader& read) {
  for (const char* key : {"moe_every_n_layers", "num_experts"}) {
    if (read.integer("", key).value_or(0) > 0) read.unsupported(key, ": a mixture of experts (nomic-embed-text v2) is not run yet");
  }
  for (const char* key : {"causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"}) {
    if (read.flag("", key, false)) read.unsupported(key, " is true: not run for nomic-bert");
  }
  if (read.number("", "rotary_emb_scale_base")) read.unsupported("rotary_emb_scale_base (xPos) is not run");
  if (const auto kind = read.string("", "activation_function"); kind && *kind != "swiglu")
    read.unsupported("activation_function \"", *kind, "\" is not run for nomic-bert; \"swiglu\" is");
}

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.embedding_norm = c.norm_bias = c.classifier.dense = true;
  c.token_types = tells_types(read, kPrefixes, "embeddings.token_type_embeddings.weight");
  refuse_what_is_not_run(read);
  read_sizes(read, c, {.n_ctx = 2048, .eps = 1e-12});
  read_ropes(read, c, {.theta = 1000, .partial = 1});
  // The model was trained for 2,048 positions. If the file has a scaling factor, the base grows with the length of longer texts (dynamic
  // NTK).
  if (read.number("", "rotary_scaling_factor")) {
    const std::int64_t trained =
        read.in_range(read.integer("", "max_trained_positions").value_or(2048), 1, kMaxContext, read.key("", "max_trained_positions"));
    for (RopeTable& rope : c.ropes) {
      rope.original = trained;
      rope.base = static_cast<float>(read.positive("", "rope_theta", 1000));
      rope.growth = static_cast<float>(read.positive("", "rotary_scaling_factor", 1));
    }
  }
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().qkv_bias = layer.attention().out_bias = read.flag("", "qkv_proj_bias", false);
    layer.feed_forward().bias = read.flag("", "mlp_fc1_bias", false);
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
  }
}

}  // namespace

const Family nomic_bert{.name = "nomic_bert",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = kPrefixes,
                        .names = kNames,
                        .keys = kKeys,
                        .configure = configure};

}  // namespace pumice::model::families_in_files::nomic_bert
