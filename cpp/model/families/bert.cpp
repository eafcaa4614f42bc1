// BERT (Devlin et al. 2018) and what has its layers and its model_type: MiniLM, bge, e5, gte v1, cross-encoders.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "embeddings.word_embeddings"},
    {position_embedding, "position_embd", "embeddings.position_embeddings"},
    {type_embedding, "token_types", "embeddings.token_type_embeddings"},
    {embedding_norm, "token_embd_norm", "embeddings.LayerNorm"},
    {q, "blk.{}.attn_q", "encoder.layer.{}.attention.self.query"},
    {k, "blk.{}.attn_k", "encoder.layer.{}.attention.self.key"},
    {v, "blk.{}.attn_v", "encoder.layer.{}.attention.self.value"},
    {attn_out, "blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"},
    {attn_residual_norm, "blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {up, "blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"},
    {down, "blk.{}.ffn_down", "encoder.layer.{}.output.dense"},
    {ffn_residual_norm, "blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"},
    {head_dense, "cls", "pooler.dense"},
    {classifier, "cls.output", "classifier"},
};
constexpr std::string_view kGguf[] = {"bert"}, kTypes[] = {"bert"}, kPrefixes[] = {"", "bert."};

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.learned_positions = c.token_types = c.embedding_norm = c.norm_bias = c.classifier.dense = true;
  read_sizes(read, c, {.n_ctx = 512, .eps = 1e-12, .activation = Activation::gelu});
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (read.flag("", key, false)) read.unsupported(key, " (BERT as a decoder, which sees backwards alone) is not run");
  }
  for (Layer& layer : c.layers) {
    layer.attention.causal = false;
    layer.attention.qkv_bias = layer.attention.out_bias = layer.feed_forward.bias = true;
    layer.attention.norms = layer.feed_forward.norms = {.before = false, .sum = true};
    layer.feed_forward.gated = false;
  }
}

}  // namespace

const Family bert{.name = "bert", .gguf_names = kGguf, .model_types = kTypes, .prefixes = kPrefixes, .names = kNames,
                  .configure = configure};

}  // namespace pumice::model::families_in_files
