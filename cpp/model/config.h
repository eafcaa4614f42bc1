// Config has a model's hyperparameters, in the same form for GGUF and safetensors files.
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
struct GgufNotes;

// Says which rows are the input of a classifier.
enum class Classifies : std::uint8_t {
  texts,   // one row per text: the rows of the text's tokens are pooled first
  tokens,  // the row of each token; the result is the logits of each token
  late,    // the row of each token; then the logits of a text's tokens are pooled (EuroBERT)
};

// Says which classifiers have a dense layer before them. The dense layer is a hidden_size x hidden_size matrix and an activation (BERT's
// pooler).
enum class DenseBefore : std::uint8_t {
  none,
  texts,  // classifiers of texts, but not those of tokens
  all,    // classifiers of texts and of tokens (ModernBERT)
};

// The settings of a classifier, which computes logits = classifier(norm(activation(dense(row)))).
struct ClassifierHead {
  Classifies what = Classifies::texts;
  PoolKind pooling = PoolKind::cls;  // cls: the first token's row; last: the last token's row; mean: the mean of all rows
  DenseBefore dense = DenseBefore::none;
  Activation activation = Activation::tanh;
  bool norm = false;                    // a norm of the kind Config::norm follows `activation` (ModernBERT)
  bool dense_bias = true, bias = true;  // the file must have a bias for the dense layer (dense_bias), for the classifier (bias)
  bool difference = false;              // the classifier has two labels, and a text's score is the first logit minus the second

  bool has_dense() const { return dense != DenseBefore::none; }
};

// The settings of an MLM head, the head of an encoder that was trained to predict masked tokens (masked language model). From each token's
// row it computes one logit per token of the vocabulary: decoder(norm(activation(dense(row)))).
struct MlmHead {
  std::int32_t width = 0;  // number of columns of the dense layer's output and of the decoder's matrix
  bool dense = true;       // false: there is no dense layer and no norm, so logits = decoder(row) (EuroBERT)
  Activation activation = Activation::gelu;
  bool dense_bias = true, bias = true;  // the file must have a bias for the dense layer (dense_bias), for the decoder (bias)
};

// Divides the distances between query and key into `count` buckets, each with a learned bias (T5, MPNet). The second half of the buckets is
// for keys after the query. In each half, every short distance has a bucket of its own. For longer distances, up to max_distance, the index
// of the bucket grows with the logarithm of the distance.
struct PositionBuckets {
  std::int32_t count = 0, max_distance = 0;
};

// Says which token PoolKind::last pools in models where this need not be the text's last token: the first token with the id `id` or, if
// `id` is empty, the first token that has the largest id in the text (CLIP).
struct TextEnd {
  std::optional<std::int32_t> id;
};

// Says how often rows pass through the file's layers (Nanbeige 4.2).
struct Loops {
  std::size_t count = 1;  // Config::layers has the file's layers this many times, one after the other
};

// Says that each column of the head's matrix is divided by its L2 norm (Ling-lite).
struct HeadColumns {
  float floor = 0;  // added to each L2 norm, so that no column is divided by 0
};

// The model that an assistant drafts tokens for (model/assistant.h).
struct Backbone {
  std::int32_t hidden_size = 0;
};

// A second input of each layer (Gemma 4 E2B, E4B). For each layer and each token, this input has `width` columns:
//   scale * (norm(projection_scale * row * W^T) + embedding_scale * table[id])
// where `row` is the token's embedding and `id` is the token's id. Without a table, the second term is absent (EmbeddingGemma 2). The layer
// multiplies these columns by a gate, which it computes from the hidden row. It multiplies the result by a matrix, normalises it, and adds
// it to the hidden row.
struct LayerInputs {
  std::int32_t width = 0;
  bool table = true;
  float embedding_scale = 1, projection_scale = 1, scale = 1;
  Activation activation = Activation::gelu_tanh;  // the gate's activation
};

// A matrix that maps embeddings to hidden_size, for models whose embedding tables have another width (ALBERT, ELECTRA).
struct EmbeddingMap {
  std::int32_t width = 0;  // number of columns of the embedding tables
  // True if the embedding norm follows the matrix, which then has no bias (DeBERTa). False if the norm precedes the matrix.
  bool norm_after = false;
};

struct Config {
  const Family* family = nullptr;
  bool gguf = false;
  std::int32_t hidden_size = 0;
  std::int64_t n_ctx = 0;  // number of positions that the model was trained for
  std::vector<Layer> layers;
  std::optional<Loops> loops;
  // The layer of the draft head, which predicts the token after the next one (multi-token prediction; Gloeckle et al. 2024, DeepSeek-AI
  // 2024). Results do not depend on the draft head, because its tokens are only guesses. The index of this layer is layers.size().
  std::optional<Layer> draft;
  // The reason why `draft` is empty, for messages. Not used if `draft` is set.
  std::string why_no_draft = "its family has none that pumice runs";
  std::optional<Backbone> backbone;                 // set if the model is an assistant
  std::vector<RopeTable> ropes;                     // the distinct rope tables of all layers; Attention::rope is an index into them
  std::vector<float> alibi_slopes;                  // one slope per head, for layers with PositionBias::alibi
  std::optional<PositionBuckets> position_buckets;  // shared by all layers with PositionBias::buckets
  // norms
  NormKind norm = NormKind::rms;
  float eps = 0;
  bool norm_weight = true;   // false: norms have no weights (OLMo 1, and some OPT models)
  bool norm_bias = false;    // the file must have biases for the norms
  bool norm_offset = false;  // the file stores w - 1 for a norm's weight w
  // embeddings, head and pooling
  float embedding_scale = 1;
  std::optional<EmbeddingMap> embedding_map;
  std::optional<LayerInputs> layer_inputs;
  bool embedding_norm = false;       // true: the embeddings are normalised before the first layer
  bool learned_positions = false;    // the model adds learned position embeddings to token embeddings
  std::int32_t position_offset = 0;  // row of the position embedding table for position 0 (2 in RoBERTa and OPT)
  bool token_types = false;          // the model adds token type embeddings; a GGUF file may lack their table
  bool final_norm = true;
  bool has_head = true;    // true: the model computes logits; if the file has no matrix for the head, the token embedding is used
  bool head_bias = false;  // the file must have a bias for the head
  std::optional<HeadColumns> head_columns;
  // If true, the head's input is not the row itself but norm(activation(dense(row))), with the activation, norm and biases of `classifier`.
  bool head_transform = false;
  ClassifierHead classifier;  // used if the file has a classifier
  // Set if the family has an MLM head that pumice runs. Used only if the file has the head's tensors (MlmUse).
  std::optional<MlmHead> mlm_head;
  // True if the file must have a matrix that projects each token's row after the final norm (EmbeddingGemma 2).
  bool projects_rows = false;
  float logit_scale = 1, logit_softcap = 0;
  std::optional<TextEnd> text_end;
  std::optional<PoolKind> pooling;  // the pooling that the file asks for; empty if the file does not say
  std::vector<std::string> notes;   // features of the file that pumice ignores, with the reasons
  // Texts for the user: each says what the file lacks, how that affects vectors or scores, and what to do. Each text begins with "lacks".
  std::vector<std::string> incomplete;
  // Names of a GGUF file's matrices that multiply pooled rows, in the order of multiplication (EmbeddingGemma: dense_2, dense_3).
  std::vector<std::string> dense;

  // Returns the number that this layer has in the names of the file's tensors. With `loops`, several layers have the same number.
  std::size_t layer_in_file(std::size_t layer) const { return layer < layers.size() ? layer % layers_in_file() : layer; }
  // Returns the number of layers in the file, without the draft head's layer.
  std::size_t layers_in_file() const { return loops ? layers.size() / loops->count : layers.size(); }
  // Returns the number of columns of the embedding tables.
  std::int32_t table_width() const { return embedding_map ? embedding_map->width : hidden_size; }
  std::int64_t inputs_width() const { return layer_inputs ? layer_inputs->width * static_cast<std::int64_t>(layers.size()) : 0; }
  std::size_t draft_index() const { return layers.size(); }
  std::size_t all_layers() const { return layers.size() + (draft ? 1 : 0); }  // number of layers including the draft head's
  const Layer& layer(std::size_t index) const { return index < layers.size() ? layers[index] : *draft; }
  bool causal() const;  // true if no layer lets a token attend to later tokens
  // Returns the attention of the first layer with attention, or null if no layer has attention.
  const Attention* first_attention() const;
  // Returns the relative positions, which all layers with attention share, or null if the model has none.
  const RelativePlaces* places() const;
  // Returns the index of the layer whose keys and values `layer` attends to. This is `layer` itself unless kv_from names another.
  std::size_t cache_of(std::size_t layer) const;
  bool keeps_past() const { return has_head; }  // true if the model generates text, for which it needs kv caches
};

// Reads the configuration of the model in `file`. Throws ErrorKind::unsupported_model for families and features that pumice does not run,
// and ErrorKind::model_format for numbers that are out of range. The file must be an assistant if `assistant` is true, and must not be one
// otherwise. If `notes` is not null and `file` is a folder, fills `notes` with the contents of the GGUF file that convert() makes from the
// folder (model/reader.h).
Config read_config(const files::ModelFile& file, bool assistant = false, GgufNotes* notes = nullptr);

PoolKind pooling_from_name(const std::string& name);
std::string_view name(PoolKind kind);

}  // namespace pumice::model
