// A description of a model: its configuration, and its weights by role. The weights have been found in the file and their shapes have been
// checked, but the data of large weights have not been read yet.
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

// The ids of the matrix or vector in one role and of its bias. An id is `none` if the model has no such weight.
struct Parameter {
  MatrixId matrix = MatrixId::none;
  VectorId vector = VectorId::none, bias = VectorId::none;
  // The factors a and b of an adapter of a quantised matrix W. The product is (W + b a) x.
  MatrixId lora_a = MatrixId::none, lora_b = MatrixId::none;
  bool present() const { return matrix != MatrixId::none || vector != VectorId::none; }
};

using Parameters = std::array<Parameter, kRoles>;

// A module that follows the layers: a small matrix or a norm, of sentence-transformers or of the model itself (Role::row_projection). Its
// input is the pooled rows or, if `on_tokens` is true, the rows of the tokens before pooling.
enum class ModuleKind : std::uint8_t { dense, layer_norm, normalize };
struct Module {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;
  std::int32_t width = 0;  // number of columns of the output
  // A dense module computes activation(weight * in). If `residual` is true, it adds shortcut * in, or `in` itself if there is no shortcut.
  Parameter weight, shortcut;
  Activation activation = Activation::none;
  bool residual = false;
};

// Of an encoder, whether its MLM head is read: never; if config.json names a class ...ForMaskedLM and the file has the head; or always, so
// that a missing head is an error.
enum class MlmUse : std::uint8_t { never, maybe, always };
// The decoder of an MLM head is cut into strips of so many rows. A backend has the logits of one strip in memory at a time.
inline constexpr std::int64_t kMlmStrip = 4096;

struct Description;

enum class SideKind : std::uint8_t { draft_head, assistant };
struct SideName {
  std::string_view name, one;  // without and with its article
};
inline constexpr SideName kSideNames[] = {{"draft head", "a draft head"}, {"assistant", "an assistant"}};

// A part of a model beside its trunk, which is the stack of layers that computes the model's results. A side part runs behind the trunk's
// last layer, on the same device, and guesses tokens. Results do not depend on the guesses.
struct SidePart {
  SideKind kind = SideKind::draft_head;
  // The part's configuration and its weights by role. The ids are those of the model's Weights. Null for a draft head, whose layer is the
  // trunk's layer Config::draft.
  std::shared_ptr<const Description> own = nullptr;
  // The trunk's layers whose keys and values the part attends to, in ascending order. Empty if the part has keys and values of its own.
  std::vector<std::size_t> reads = {};

  const SideName& name() const { return kSideNames[static_cast<std::size_t>(kind)]; }
};

// A model: its trunk, the ends that follow the trunk's last layer (EndOutput in model/programs.h), and the parts beside the trunk.
struct Description {
  Config config;
  Weights weights;
  Parameters globals;              // of the whole model: embeddings, final norm, head, classifier and its dense layer
  std::vector<Parameters> layers;  // Config::all_layers() of them
  std::vector<SidePart> sides;
  VectorId draft_shift = VectorId::none;   // for Config::draft: the taps of a convolution that moves each row to the next position
  VectorId alibi_slopes = VectorId::none;  // for layers with PositionBias::alibi
  // For layers with PositionBias::buckets: heads x (2 position_reach + 1) values, as in Attend.
  VectorId position_bias = VectorId::none;
  std::int32_t position_reach = 0;
  PlaceTables places;                                // for layers with Attention::places
  std::vector<VectorId> key_norms;                   // [layer]: as add_key_norms() in model/taps.h says
  std::vector<PoolKind> pooling = {PoolKind::mean};  // if there are several, the vectors are concatenated in this order
  std::vector<Module> modules;
  // For a reranker that is a decoder: the rows of the head that belong to the label tokens. They are applied to the last token.
  Parameter score;
  std::vector<Parameter> mlm_strips;  // the decoder of the MLM head, kMlmStrip rows each; empty if the model has no such head
  std::vector<MatrixId> copies;       // matrices of tensors that another matrix has too, in another form: not counted as parameters
  std::int32_t vocab_size = 0;        // number of rows of the token embedding
  std::int32_t labels = 0;            // number of outputs of the classifier; 0: there is no classifier
  std::uint64_t parameters = 0;
  std::vector<std::shared_ptr<const files::ModelFile>> files;  // of the model, its adapters and its modules
  std::vector<std::string> notes;  // what load() was asked for and did not do, and why; how packed weights are read
  // Config::incomplete, and texts of the same form about missing optional tensors and about tensors that no layer reads.
  std::vector<std::string> incomplete;

  const Parameter& global(Role role) const { return globals[static_cast<std::size_t>(role)]; }
  const Parameter& at(std::size_t layer, Role role) const { return layers[layer][static_cast<std::size_t>(role)]; }
  bool gives_sparse() const { return !mlm_strips.empty(); }
  bool labels_tokens() const { return labels > 0 && config.classifier.what == Classifies::tokens; }
  std::int32_t row_size() const {  // width of a token's row after the modules with on_tokens
    std::int32_t width = config.hidden_size;
    for (const Module& m : modules) width = m.on_tokens ? m.width : width;
    return width;
  }
  // Returns the width of a text's vector before the modules of pooled rows: for each kind of pooling, one row, projected if the model has a
  // projection.
  std::int64_t pooled_size() const {
    const MatrixId projection = global(Role::projection).matrix;
    return static_cast<std::int64_t>(pooling.size()) * (projection == MatrixId::none ? row_size() : matrix(projection).rows);
  }
  std::int64_t vector_size() const {  // width of a text's vector after all modules
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
  // Float matrices are converted to this format while they are read. Embedding tables keep their format unless they are also the head.
  std::optional<Format> quantize;
  // `automatic` allows a backend to round the matrices of an encoder (Matrix::rounding), except those of a classifier and of the dense
  // layer before it.
  Compute compute = Compute::automatic;
  MlmUse mlm_head = MlmUse::never;
  bool draft = true;  // whether the draft head is read, if the file has one
  std::string task;   // the adapters of this task are merged into the weights (model/adapters.h)
  std::vector<LoraSpec> lora;
  // Whether tensors of layers that no part of the model reads are an entry of Description::incomplete. If false, they are an error.
  bool allow_unread = false;
};

// Throws the errors of read_config(). Also throws ErrorKind::model_format if a tensor is missing, has the wrong shape, or belongs to a
// layer and is not read, and ErrorKind::unsupported_model if its format is unknown.
Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);
// Describes an assistant. Its weights come after those of `model`, which are the first ones of the result.
Description describe_assistant(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options, const Description& model);

}  // namespace pumice::model
