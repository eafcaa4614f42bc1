// A model file resolved: its configuration, and every weight by role, checked for name and shape. Nothing large is read yet.
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

// A matrix or a vector, with its bias. Ids are none where the model has no such weight.
struct Parameter {
  MatrixId matrix = MatrixId::none;
  VectorId vector = VectorId::none, bias = VectorId::none;
  MatrixId lora_a = MatrixId::none, lora_b = MatrixId::none;  // of a quantised matrix: its rows get b a added
  bool present() const { return matrix != MatrixId::none || vector != VectorId::none; }
};

using Parameters = std::array<Parameter, kRoles>;

// One of what sentence-transformers puts behind the layers: a small matrix or a norm, on pooled rows, or on token rows before they are
// pooled.
enum class ModuleKind : std::uint8_t { dense, layer_norm, normalize };
struct Module {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;
  std::int32_t width = 0;      // of what it gives
  Parameter weight, shortcut;  // dense: out = activation(weight in) (+ shortcut in, or + in)
  Activation activation = Activation::none;
  bool residual = false;
};

struct Description {
  Config config;
  Weights weights;
  Parameters globals;  // embeddings, final norm, head, classifier and what stands before it
  std::vector<Parameters> layers;
  VectorId alibi_slopes = VectorId::none;   // of layers with PositionBias::alibi
  VectorId position_bias = VectorId::none;  // of layers with PositionBias::buckets: heads x (2 position_reach + 1), as Attend has it
  std::int32_t position_reach = 0;
  PlaceTables places;                                // of layers with Attention::places
  std::vector<PoolKind> pooling = {PoolKind::mean};  // side by side, in this order
  std::vector<Module> modules;
  Parameter score;              // rows of the head that a reranker reads at the last token; they are its labels
  std::int32_t vocab_size = 0;  // rows of the token embedding
  std::int32_t labels = 0;      // rows of the classifier; 0: none
  std::uint64_t parameters = 0;
  std::vector<std::shared_ptr<const files::ModelFile>> files;  // weights are read from these: the model's, its adapters' and its modules'
  std::vector<std::string> notes;                              // what was asked for and not done, and why
  std::vector<std::string> incomplete;  // Config::incomplete, tensors that are missing and need not be there, and those that nothing reads

  const Parameter& global(Role role) const { return globals[static_cast<std::size_t>(role)]; }
  const Parameter& at(std::size_t layer, Role role) const { return layers[layer][static_cast<std::size_t>(role)]; }
  std::int32_t row_size() const {  // of a token's row behind its modules
    std::int32_t width = config.hidden_size;
    for (const Module& m : modules) width = m.on_tokens ? m.width : width;
    return width;
  }
  std::int64_t pooled_size() const {  // of a pooled row: each kind of pooling has its part, projected where the model does that
    const MatrixId projection = global(Role::projection).matrix;
    return static_cast<std::int64_t>(pooling.size()) * (projection == MatrixId::none ? row_size() : matrix(projection).rows);
  }
  std::int64_t vector_size() const {  // of a pooled row behind its modules
    return modules.empty() || modules.back().on_tokens ? pooled_size() : modules.back().width;
  }
  const Matrix& matrix(MatrixId id) const { return weights.matrices[static_cast<std::size_t>(id)]; }
  const Vector& vector(VectorId id) const { return weights.vectors[static_cast<std::size_t>(id)]; }
  float number(const Parameter& parameter) const { return vector(parameter.vector).values.front(); }  // the one value of a vector of one

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
  // What float matrices are packed to while they are read; embeddings that are not also the head stay as they are.
  std::optional<Format> quantize;
  // Automatic: an encoder's matrices may be rounded (Matrix::rounding), but for a classifier and the dense layer before it.
  Compute compute = Compute::automatic;
  std::string task;  // whose adapters are merged into the weights (model/adapters.h)
  std::vector<LoraSpec> lora;
};

// Throws unsupported_model and model_format as read_config() does, and for tensors that are missing, of the wrong shape or of a format not
// known.
Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
