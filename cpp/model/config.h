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
  PoolKind pooling = PoolKind::cls;  // which row: the first, the last, the mean of all
  bool late = false;                 // pools the logits of all rows (EuroBERT)
  bool dense = false;                // a layer as wide as the rows before the classifier (BERT's pooler), with this activation
  Activation activation = Activation::tanh;
  bool norm = false;                    // on what the dense layer gives (ModernBERT), as the model's norms are
  bool dense_bias = true, bias = true;  // must be in the file: of the dense layer and of the classifier
  bool difference = false;              // of two labels, the score is how much more likely the first one is than the second one
};

// Learned biases by distance (T5, MPNet): a table of buckets, those of the second half for keys after the query. Near distances have a
// bucket each; the others grow with the logarithm, up to max_distance.
struct PositionBuckets {
  std::int32_t count = 0, max_distance = 0;  // 0: none
};

// The last token that a pooled row sees, where that is not the text's last: the first such token, or the first of the largest ids (CLIP).
struct TextEnd {
  enum Kind : std::uint8_t { text, token, largest } kind = text;
  std::int32_t id = 0;  // of `token`
};

// What each layer gets of a token besides the row (Gemma 4 E2B, E4B): `width` columns for each layer of
//   scale * (norm(projection_scale * row * W^T) + embedding_scale * table[id])
// of the embedded row. The layer gates them by its row and adds what it makes of them.
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
  std::vector<RopeTable> ropes;      // distinct; Attention::rope names one
  std::vector<float> alibi_slopes;   // one for each head, of layers with PositionBias::alibi
  PositionBuckets position_buckets;  // of layers with PositionBias::buckets, one table for all
  // norms
  NormKind norm = NormKind::rms;
  float eps = 0;
  bool norm_weight = true;   // OLMo 1: norms have no weights
  bool norm_bias = false;    // must be in the file
  bool norm_offset = false;  // a weight w in the file stands for 1 + w
  // ends
  float embedding_scale = 1;
  std::optional<EmbeddingMap> embedding_map;
  std::optional<LayerInputs> layer_inputs;
  bool embedding_norm = false;       // on the embedded rows
  bool learned_positions = false;    // a table of positions is added
  std::int32_t position_offset = 0;  // row of that table for position 0 (RoBERTa, OPT: 2)
  bool token_types = false;          // a table of types is added; GGUF files of families without types leave it out
  bool final_norm = true;
  bool has_head = true;       // gives logits; without a matrix of its own the head is the embedding
  bool head_bias = false;     // must be in the file
  ClassifierHead classifier;  // where the file has one
  float logit_scale = 1, logit_softcap = 0;
  TextEnd text_end;
  std::optional<PoolKind> pooling;      // when the file says
  std::vector<std::string> notes;       // what is not run, and why
  std::vector<std::string> incomplete;  // "lacks ...": of the model, and not in this file; what it makes of vectors or scores, what to do
  std::vector<std::string> dense;       // tensors of a GGUF file that stand behind pooling, in order (EmbeddingGemma: dense_2, dense_3)

  std::int32_t table_width() const { return embedding_map ? embedding_map->width : hidden_size; }  // of the embeddings
  std::int64_t inputs_width() const { return layer_inputs ? layer_inputs->width * static_cast<std::int64_t>(layers.size()) : 0; }
  bool causal() const;                            // no layer lets a position see those after it
  const Attention* first_attention() const;       // null: no layer has attention
  const RelativePlaces* places() const;           // of the layers with attention; null: none
  std::size_t cache_of(std::size_t layer) const;  // the layer whose keys and values it reads
  bool keeps_past() const { return has_head; }    // generates, over caches
};

// Throws unsupported_model for families and features that are not run, model_format for numbers that make no sense.
Config read_config(const files::ModelFile& file);

PoolKind pooling_from_name(const std::string& name);
std::string_view name(PoolKind kind);

}  // namespace pumice::model
