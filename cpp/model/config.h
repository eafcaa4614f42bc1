// One view of a model's hyperparameters, whichever file they come from. Every number is in range when read_config() returns.
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

// A sequence classifier: classifier(norm(activation(dense(row)))) of one row of the text, pooled before, or of every row and pooled after.
struct ClassifierHead {
  PoolKind pooling = PoolKind::cls;  // which row of the text is read: the first, the last, or the mean of all
  bool late = false;                 // every row is classified, then the logits are pooled (EuroBERT)
  bool dense = false;                // a layer as wide as the rows stands before the classifier (BERT's pooler); `activation` follows it
  Activation activation = Activation::tanh;
  bool norm = false;                    // a norm of the model's kind follows the dense layer (ModernBERT)
  bool dense_bias = true, bias = true;  // must the file have the biases of the dense layer and of the classifier?
  bool difference = false;              // there are two labels, and the score is the first logit less the second
};

// Learned biases by distance (T5, MPNet): a table of buckets. The second half is for keys after the query. Near distances have a bucket
// each; farther buckets grow with the logarithm of the distance, up to max_distance.
struct PositionBuckets {
  std::int32_t count = 0, max_distance = 0;  // 0: none
};

// The token that ends a text for pooling, where that is not the last one: the first token `id`, or the first of the largest id (CLIP).
struct TextEnd {
  enum Kind : std::uint8_t { text, token, largest } kind = text;
  std::int32_t id = 0;  // of `token`
};

// A second input of each layer (Gemma 4 E2B, E4B). For each layer and token it is `width` columns of
//   scale * (norm(projection_scale * row * W^T) + embedding_scale * table[id])
// where `row` is the embedded row. The layer gates them by its row, multiplies by a matrix and adds the result.
struct LayerInputs {
  std::int32_t width = 0;
  float embedding_scale = 1, projection_scale = 1, scale = 1;
  Activation activation = Activation::gelu_tanh;  // of the gate
};

// The tables of embeddings are narrower or wider than the layers' rows: a matrix maps their rows to hidden_size (ALBERT, ELECTRA).
struct EmbeddingMap {
  std::int32_t width = 0;   // of the tables
  bool norm_after = false;  // Config::embedding_norm follows the matrix, which then has no bias (DeBERTa); otherwise it stands before
};

struct Config {
  const Family* family = nullptr;
  bool gguf = false;
  std::int32_t hidden_size = 0;
  std::int64_t n_ctx = 0;  // positions the model was trained for
  std::vector<Layer> layers;
  std::vector<RopeTable> ropes;      // distinct tables; Attention::rope is an index
  std::vector<float> alibi_slopes;   // a slope for each head, for layers with PositionBias::alibi
  PositionBuckets position_buckets;  // one table for all layers with PositionBias::buckets
  // norms
  NormKind norm = NormKind::rms;
  float eps = 0;
  bool norm_weight = true;   // false: norms have no weights (OLMo 1, a switch of OPT)
  bool norm_bias = false;    // norms must have biases in the file
  bool norm_offset = false;  // a weight w in the file stands for 1 + w
  // ends
  float embedding_scale = 1;
  std::optional<EmbeddingMap> embedding_map;
  std::optional<LayerInputs> layer_inputs;
  bool embedding_norm = false;       // the embedded rows are normalised
  bool learned_positions = false;    // a table of positions is added
  std::int32_t position_offset = 0;  // row of that table for position 0 (RoBERTa, OPT: 2)
  bool token_types = false;          // a table of token types is added; a GGUF file may leave it out
  bool final_norm = true;
  bool has_head = true;       // gives logits; without a matrix of its own the head is the embedding
  bool head_bias = false;     // the head must have a bias in the file
  ClassifierHead classifier;  // used where the file has a classifier
  float logit_scale = 1, logit_softcap = 0;
  TextEnd text_end;
  std::optional<PoolKind> pooling;  // where the file says
  std::vector<std::string> notes;   // what this file asks for that is not run, and why
  std::vector<std::string>
      incomplete;                  // "lacks ...": what the model has and this file has not, its effect on vectors or scores, what to do
  std::vector<std::string> dense;  // tensors of a GGUF file that multiply pooled rows, in order (EmbeddingGemma: dense_2, dense_3)

  std::int32_t table_width() const { return embedding_map ? embedding_map->width : hidden_size; }  // of the tables of embeddings
  std::int64_t inputs_width() const { return layer_inputs ? layer_inputs->width * static_cast<std::int64_t>(layers.size()) : 0; }
  bool causal() const;                            // no layer lets a position see those after it
  const Attention* first_attention() const;       // null: no layer has attention
  const RelativePlaces* places() const;           // of the layers with attention; null: none
  std::size_t cache_of(std::size_t layer) const;  // the layer whose keys and values it reads
  bool keeps_past() const { return has_head; }    // it generates text, with kv caches
};

// Throws unsupported_model for families and features that are not run, model_format for numbers that make no sense.
Config read_config(const files::ModelFile& file);

PoolKind pooling_from_name(const std::string& name);
std::string_view name(PoolKind kind);

}  // namespace pumice::model
