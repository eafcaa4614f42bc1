// NeoBERT (Le Breton et al. 2025) has RMS norms before each branch, no biases, gated feed-forward networks, bidirectional attention, and a
// rope that rotates pairs of neighbouring columns.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::neobert {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"neo-bert"}, kTypes[] = {"neobert"}, kPrefixes[] = {"model.", ""};
constexpr KeyName kKeys[] = {{"rms_norm_eps", "norm_eps"}, {"max_position_embeddings", "max_length"}};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "encoder"},
    {attn_norm, "blk.{}.attn_norm", "transformer_encoder.{}.attention_norm"},
    {q, "blk.{}.attn_qkv", "transformer_encoder.{}.qkv", Fused::qkv_by_head},
    {k, "blk.{}.attn_qkv", "transformer_encoder.{}.qkv", Fused::qkv_by_head},
    {v, "blk.{}.attn_qkv", "transformer_encoder.{}.qkv", Fused::qkv_by_head},
    {attn_out, "blk.{}.attn_output", "transformer_encoder.{}.wo"},
    {ffn_norm, "blk.{}.ffn_norm", "transformer_encoder.{}.ffn_norm"},
    {gate, "blk.{}.ffn_up", "transformer_encoder.{}.ffn.w12", Fused::gate_up},
    {up, "blk.{}.ffn_up", "transformer_encoder.{}.ffn.w12", Fused::gate_up},
    {down, "blk.{}.ffn_down", "transformer_encoder.{}.ffn.w3"},
    {final_norm, "enc.output_norm", "layer_norm"},
    {head_dense, "cls", "dense"},
    {classifier, "cls.output", "classifier"},
};

// Throws for settings of the training code that the released models do not use.
void refuse_variants(const Reader& read) {
  for (const char* key : {"rope", "rms_norm"}) {
    if (!read.flag("", key, true)) read.unsupported(key, " false is not run");
  }
  if (read.flag("", "ngpt", false)) read.unsupported("ngpt (normalised rows) is not run");
}

void configure(const Reader& read, Config& c) {
  refuse_variants(read);
  c.has_head = false;
  c.classifier = {.dense = DenseBefore::texts, .activation = Activation::tanh};
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 1024});
  if (c.layers.front().feed_forward().activation != Activation::silu) read.unsupported("hidden_act other than SwiGLU is not run");
  read_ropes(read, c, {.theta = 10000, .interleaved = true});
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    std::int32_t& width = layer.feed_forward().width;
    // The width is 2/3 of intermediate_size, rounded up to a multiple of 8. GGUF files have the number before this rounding.
    if (!c.gguf)
      width = static_cast<std::int32_t>(read.in_range(std::int64_t{2} * width / 3, 1, kMaxWidth * 4, "2/3 of intermediate_size"));
    read.gguf_says("feed_forward_length", std::int64_t{width});
    width = (width + 7) / 8 * 8;
  }
}

}  // namespace

const Family neobert{.name = "neobert",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = kPrefixes,
                     .names = kNames,
                     .keys = kKeys,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::neobert
