// A description of a model: its configuration, and its weights by role, found in the file and checked for shape. Large weights are not yet
// read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/program.h"
#include "model/config.h"
#include "model/family.h"
#include "model/lora.h"
#include "model/mixers/places.h"

namespace pumice::model {

// The ids of a matrix or a vector and of its bias, each `none` if the model has no such weight.
struct Parameter {
  MatrixId matrix = MatrixId::none;
  VectorId vector = VectorId::none, bias = VectorId::none;
  MatrixId lora_a = MatrixId::none, lora_b = MatrixId::none;  // an adapter of a quantised matrix W: (W + b a) x
  bool present() const { return matrix != MatrixId::none || vector != VectorId::none; }
};

using Parameters = std::array<Parameter, kRoles>;

// A module of sentence-transformers that follows the layers: a small matrix or a norm. Its input is the pooled rows, or (on_tokens) the
// tokens' rows before pooling.
enum class ModuleKind : std::uint8_t { dense, layer_norm, normalize };
struct Module {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;
  std::int32_t width = 0;      // of its output
  Parameter weight, shortcut;  // dense: out = activation(weight in) (+ shortcut in, or + in)
  Activation activation = Activation::none;
  bool residual = false;
};

struct Description {
  Config config;
  Weights weights;
  Parameters globals;  // of the whole model: embeddings, final norm, head, classifier and its dense layer
  std::vector<Parameters> layers;
  VectorId alibi_slopes = VectorId::none;   // for layers with PositionBias::alibi
  VectorId position_bias = VectorId::none;  // for layers with PositionBias::buckets: heads x (2 position_reach + 1), as in Attend
  std::int32_t position_reach = 0;
  PlaceTables places;                                // for layers with Attention::places
  std::vector<PoolKind> pooling = {PoolKind::mean};  // vectors of several kinds are concatenated in this order
  std::vector<Module> modules;
  Parameter score;              // a reranker's matrix: the head's rows of its label tokens, applied to the last token
  std::int32_t vocab_size = 0;  // rows of the token embedding
  std::int32_t labels = 0;      // rows of the classifier; 0: none
  std::uint64_t parameters = 0;
  std::vector<std::shared_ptr<const files::ModelFile>> files;  // of the model, its adapters and its modules
  std::vector<std::string> notes;                              // requests that were not carried out, and why
  std::vector<std::string> incomplete;  // Config::incomplete, missing optional tensors, and tensors that no layer uses

  const Parameter& global(Role role) const { return globals[static_cast<std::size_t>(role)]; }
  const Parameter& at(std::size_t layer, Role role) const { return layers[layer][static_cast<std::size_t>(role)]; }
  std::int32_t row_size() const {  // width of a token's row after its modules
    std::int32_t width = config.hidden_size;
    for (const Module& m : modules) width = m.on_tokens ? m.width : width;
    return width;
  }
  std::int64_t pooled_size() const {  // width of a text's vector before its modules: one (projected) row per kind of pooling
    const MatrixId projection = global(Role::projection).matrix;
    return static_cast<std::int64_t>(pooling.size()) * (projection == MatrixId::none ? row_size() : matrix(projection).rows);
  }
  std::int64_t vector_size() const {  // width of a text's vector after its modules
    return modules.empty() || modules.back().on_tokens ? pooled_size() : modules.back().width;
  }
  const Matrix& matrix(MatrixId id) const { return weights.matrices[static_cast<std::size_t>(id)]; }
  const Vector& vector(VectorId id) const { return weights.vectors[static_cast<std::size_t>(id)]; }
  float number(const Parameter& parameter) const {
    return vector(parameter.vector).values.front();
  }  // the value of a vector that has one value

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
  // The format to which float matrices are converted while they are read. Embedding tables keep their own, unless they are also the head.
  std::optional<Format> quantize;
  // `automatic` allows rounding of an encoder's matrices (Matrix::rounding), except for a classifier and the dense layer before it.
  Compute compute = Compute::automatic;
  std::string task;  // the adapters of this task are merged into the weights (model/adapters.h)
  std::vector<LoraSpec> lora;
};

// Throws unsupported_model and model_format as read_config() does, and also if a tensor is missing or has a wrong shape or an unknown
// format.
Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
