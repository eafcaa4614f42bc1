// A model's hyperparameters in one form, for GGUF and safetensors files alike. Every number is in range when read_config() returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/program.h"
#include "model/layer.h"

namespace pumice::files {
class ModelFile;
}

namespace pumice::model {

struct Family;

// A sequence classifier: logits = classifier(norm(activation(dense(row)))). Tokens' rows are pooled before it, or its logits after it.
struct ClassifierHead {
  PoolKind pooling = PoolKind::cls;  // input row: the first token's, the last token's, or the mean of all
  bool late = false;                 // every token is classified, then the logits are pooled (EuroBERT)
  bool dense = false;                // a hidden_size x hidden_size layer precedes the classifier (BERT's pooler); `activation` follows it
  Activation activation = Activation::tanh;
  bool norm = false;                    // a norm of the model's kind follows the dense layer (ModernBERT)
  bool dense_bias = true, bias = true;  // must the file have the biases of the dense layer and of the classifier?
  bool difference = false;              // there are two labels, and the score is the first logit minus the second
};

// Buckets of distances between query and key, each with a learned bias (T5, MPNet). The second half of the buckets is for keys after the
// query. Each short distance has a bucket of its own; at longer ones the bucket's index grows with the logarithm, up to max_distance.
struct PositionBuckets {
  std::int32_t count = 0, max_distance = 0;  // 0: none
};

// Which token counts as a text's last one for pooling: the real last token (text), the first one whose id is `id` (token), or the first one
// that has the text's largest id (largest; CLIP).
struct TextEnd {
  enum Kind : std::uint8_t { text, token, largest } kind = text;
  std::int32_t id = 0;  // for kind `token`
};

// A second input of each layer (Gemma 4 E2B, E4B). For each layer and token it is `width` columns of
//   scale * (norm(projection_scale * row * W^T) + embedding_scale * table[id])
// where `row` is the token's embedding. A layer gates these columns by the hidden row, multiplies them by a matrix and adds the product to
// the hidden row.
struct LayerInputs {
  std::int32_t width = 0;
  float embedding_scale = 1, projection_scale = 1, scale = 1;
  Activation activation = Activation::gelu_tanh;  // of the gate
};

// A matrix that maps embeddings to hidden_size, where the embedding tables have another width (ALBERT, ELECTRA).
struct EmbeddingMap {
  std::int32_t width = 0;   // of the embedding tables
  bool norm_after = false;  // the embedding norm follows the matrix, which then has no bias (DeBERTa); if false, it precedes it
};

struct Config {
  const Family* family = nullptr;
  bool gguf = false;
  std::int32_t hidden_size = 0;
  std::int64_t n_ctx = 0;  // number of positions that the model was trained for
  std::vector<Layer> layers;
  std::vector<RopeTable> ropes;      // distinct tables; Attention::rope is an index
  std::vector<float> alibi_slopes;   // a slope for each head, for layers with PositionBias::alibi
  PositionBuckets position_buckets;  // one table for all layers with PositionBias::buckets
  // norms
  NormKind norm = NormKind::rms;
  float eps = 0;
  bool norm_weight = true;   // false: norms have no weights (OLMo 1, a switch of OPT)
  bool norm_bias = false;    // norms must have biases in the file
  bool norm_offset = false;  // the file stores w - 1 in place of a norm's weight w
  // ends
  float embedding_scale = 1;
  std::optional<EmbeddingMap> embedding_map;
  std::optional<LayerInputs> layer_inputs;
  bool embedding_norm = false;       // the embedded rows are normalised
  bool learned_positions = false;    // embeddings of positions are added
  std::int32_t position_offset = 0;  // table row for position 0 (2 in RoBERTa and OPT)
  bool token_types = false;          // embeddings of token types are added; a GGUF file may lack the table
  bool final_norm = true;
  bool has_head = true;       // the model computes logits; if it has no head matrix, it uses the token embedding
  bool head_bias = false;     // the head must have a bias in the file
  ClassifierHead classifier;  // used where the file has a classifier
  float logit_scale = 1, logit_softcap = 0;
  TextEnd text_end;
  std::optional<PoolKind> pooling;      // none: the file does not say
  std::vector<std::string> notes;       // features in the file that pumice ignores, and why
  std::vector<std::string> incomplete;  // "lacks ...": what this file lacks, how that affects vectors or scores, what to do
  std::vector<std::string> dense;       // tensors of a GGUF file that multiply pooled rows, in order (EmbeddingGemma: dense_2, dense_3)

  std::int32_t table_width() const { return embedding_map ? embedding_map->width : hidden_size; }  // of the embedding tables
  std::int64_t inputs_width() const { return layer_inputs ? layer_inputs->width * static_cast<std::int64_t>(layers.size()) : 0; }
  bool causal() const;                            // no token attends to later ones, in any layer
  const Attention* first_attention() const;       // null if no layer has attention
  const RelativePlaces* places() const;           // those of the layers with attention, or null
  std::size_t cache_of(std::size_t layer) const;  // the layer whose keys and values `layer` attends to
  bool keeps_past() const { return has_head; }    // the model generates text and has kv caches
};

// Throws unsupported_model for families and features that are not run, model_format for numbers that make no sense.
Config read_config(const files::ModelFile& file);

PoolKind pooling_from_name(const std::string& name);
std::string_view name(PoolKind kind);

}  // namespace pumice::model
