// The description of a model: its configuration and its weights. Each weight has a role (model/roles.h), for example Role::q, a layer's
// matrix for queries. All weights have been found in the file and their shapes have been checked, but the data of large weights have not
// been read yet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/program.h"
#include "model/config.h"
#include "model/family.h"
#include "model/lora.h"
#include "model/mixers/places.h"

namespace pumice::model {

// The weight with one role (a matrix or a vector) and its bias. An id is `none` if the model has no such weight.
struct Parameter {
  MatrixId matrix = MatrixId::none;
  VectorId vector = VectorId::none, bias = VectorId::none;
  // The factors a and b of an adapter that is not merged into the matrix W, because W is quantised. The product is (W + b a) x.
  MatrixId lora_a = MatrixId::none, lora_b = MatrixId::none;
  bool present() const { return matrix != MatrixId::none || vector != VectorId::none; }
};

using Parameters = std::array<Parameter, kRoles>;

// A module is a small matrix or a norm after the layers. Most modules are listed in modules.json of sentence-transformers, and
// Role::row_projection becomes a module, too. A module's input is the pooled rows or, if `on_tokens` is true, the rows of the tokens before
// pooling.
enum class ModuleKind : std::uint8_t { dense, layer_norm, normalize };
struct Module {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;
  std::int32_t width = 0;  // number of columns of the output
  // A dense module computes activation(weight * in), where `in` is its input. If `residual` is true, the module adds shortcut * in, or `in`
  // itself if there is no shortcut.
  Parameter weight, shortcut;
  Activation activation = Activation::none;
  bool residual = false;
};

// Says whether an encoder's MLM head is loaded: `never`, `maybe` (if config.json names a class ...ForMaskedLM and the file has the head),
// or `always` (a missing head is an error).
enum class MlmUse : std::uint8_t { never, maybe, always };
// Number of rows of a strip. The decoder of an MLM head is cut into strips, so that a backend has the logits of only one strip in memory at
// a time.
inline constexpr std::int64_t kMlmStrip = 4096;

struct Description;

enum class SideKind : std::uint8_t { draft_head, assistant };
struct SideName {
  std::string_view name, one;  // the name without and with its article
};
inline constexpr SideName kSideNames[] = {{"draft head", "a draft head"}, {"assistant", "an assistant"}};

// A side part of a model guesses the next tokens. It runs after the last layer of the trunk, the stack of layers that computes the model's
// results, and on the device of that layer. Results do not depend on the guesses.
struct SidePart {
  SideKind kind = SideKind::draft_head;
  // The side part's own configuration and weights. The ids of these weights are indices into the Weights of the whole model. Null for a
  // draft head, because the model's configuration describes its layer (Config::draft).
  std::shared_ptr<const Description> own = nullptr;
  // The trunk's layers whose keys and values the side part attends to, in ascending order. Empty if it computes keys and values of its own.
  std::vector<std::size_t> reads = {};

  const SideName& name() const { return kSideNames[static_cast<std::size_t>(kind)]; }
};

// Describes a whole model: its trunk (the stack of layers), the ends that follow the trunk's last layer (EndOutput in model/programs.h),
// and the parts beside the trunk.
struct Description {
  Config config;
  Weights weights;
  Parameters globals;              // weights outside of the layers: embeddings, final norm, head, classifier and its dense layer
  std::vector<Parameters> layers;  // one entry per layer, including the draft head's layer
  std::vector<SidePart> sides;
  // The taps of a convolution that moves each row to the next position, for the draft head. `none` if the model has no draft head.
  VectorId draft_shift = VectorId::none;
  VectorId alibi_slopes = VectorId::none;  // ALiBi's slopes, for layers with PositionBias::alibi
  // The learned biases of layers with PositionBias::buckets: heads x (2 position_reach + 1) values in the form of Attend::bias
  // (core/ops.h). position_reach is the value of Attend::reach.
  VectorId position_bias = VectorId::none;
  std::int32_t position_reach = 0;
  PlaceTables places;  // tables of relative positions, for layers with Attention::places
  // For each layer, the weights of the norm of q and k in the delta rule. Set by add_key_norms() (model/taps.h).
  std::vector<VectorId> key_norms;
  std::vector<PoolKind> pooling = {PoolKind::mean};  // kinds of pooling; the vectors of several kinds are concatenated in this order
  std::vector<Module> modules;
  // Set if a decoder is used as a reranker: the head's rows for the label tokens, as a matrix of their own. This matrix multiplies the row
  // of a text's last token.
  Parameter score;
  // The strips of the MLM head's decoder, matrices of kMlmStrip rows. Empty if the model has no such head.
  std::vector<Parameter> mlm_strips;
  // Matrices that are read from the same tensor as another matrix, for example the strips of an MLM decoder. They are not counted in
  // `parameters`, because the other matrix is counted.
  std::vector<MatrixId> copies;
  std::int32_t vocab_size = 0;  // number of rows of the token embedding
  std::int32_t labels = 0;      // number of outputs of the classifier; 0: there is no classifier
  std::uint64_t parameters = 0;
  // The files of the model, of its adapters, and of its modules.
  std::vector<std::shared_ptr<const files::ModelFile>> files;
  // Texts for the user. They are the texts of Config::notes, texts about requests to load() that were not carried out, with the reasons,
  // and texts about how packed weights are read.
  std::vector<std::string> notes;
  // The texts of Config::incomplete, and texts of the same form about missing optional tensors and about tensors that no layer uses.
  std::vector<std::string> incomplete;

  const Parameter& global(Role role) const { return globals[static_cast<std::size_t>(role)]; }
  const Parameter& at(std::size_t layer, Role role) const { return layers[layer][static_cast<std::size_t>(role)]; }
  bool gives_sparse() const { return !mlm_strips.empty(); }
  bool labels_tokens() const { return labels > 0 && config.classifier.what == Classifies::tokens; }
  // Returns the number of columns of a token's row after the modules with on_tokens.
  std::int32_t row_size() const {
    std::int32_t width = config.hidden_size;
    for (const Module& m : modules) width = m.on_tokens ? m.width : width;
    return width;
  }
  // Returns the number of columns of a text's vector before the modules without on_tokens. The vector consists of one row per kind of
  // pooling. If the model has a projection, each row is multiplied by it.
  std::int64_t pooled_size() const {
    const MatrixId projection = global(Role::projection).matrix;
    return static_cast<std::int64_t>(pooling.size()) * (projection == MatrixId::none ? row_size() : matrix(projection).rows);
  }
  std::int64_t vector_size() const {  // number of columns of a text's vector after all modules
    return modules.empty() || modules.back().on_tokens ? pooled_size() : modules.back().width;
  }
  const Matrix& matrix(MatrixId id) const { return weights.matrices[static_cast<std::size_t>(id)]; }
  const Vector& vector(VectorId id) const { return weights.vectors[static_cast<std::size_t>(id)]; }
  // Returns the value of a vector that has only one value.
  float number(const Parameter& parameter) const { return vector(parameter.vector).values.front(); }

  MatrixId add(Matrix matrix) {
    weights.matrices.push_back(std::move(matrix));
    return static_cast<MatrixId>(weights.matrices.size() - 1);
  }
  VectorId add(Vector vector) {
    weights.vectors.push_back(std::move(vector));
    return static_cast<VectorId>(weights.vectors.size() - 1);
  }
};

struct DescribeOptions {
  // The format to which float matrices are converted while they are read; empty: none. Embedding tables keep their format unless they are
  // also the head.
  std::optional<Format> quantize;
  // With `automatic`, a backend may round the matrices of an encoder without experts (Matrix::rounding), except those of a classifier and
  // of the dense layer before it.
  Compute compute = Compute::automatic;
  MlmUse mlm_head = MlmUse::never;
  bool draft = true;  // true: the draft head is loaded if the file has one
  std::string task;   // name of the task whose adapters are merged into the weights (model/adapters.h)
  std::vector<LoraSpec> lora;
  // False: tensors of layers are an error if no part of the model uses them. True: Description::incomplete gets an entry about them.
  bool allow_unread = false;
};

// Returns the description of the model in `file`. Throws the errors of read_config(). Throws ErrorKind::model_format if a tensor is
// missing, has the wrong shape, or belongs to a layer that does not use it, and ErrorKind::unsupported_model if a tensor's format is
// unknown.
Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);
// Returns the description of the assistant in `file`, which drafts tokens for `model`. Description::weights of the result has the weights
// of `model` first, and then the assistant's.
Description describe_assistant(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options, const Description& model);

}  // namespace pumice::model
