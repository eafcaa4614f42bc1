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
  MatrixId lora_a = MatrixId::none, lora_b = MatrixId::none;  // an adapter of a quantised matrix: b a is added to its product
  bool present() const { return matrix != MatrixId::none || vector != VectorId::none; }
};

using Parameters = std::array<Parameter, kRoles>;

// A module of sentence-transformers behind the layers: a small matrix or a norm. It works on pooled rows, or on token rows before they are
// pooled.
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
  Parameters globals;  // embeddings, final norm, head, classifier and what stands before it
  std::vector<Parameters> layers;
  VectorId alibi_slopes = VectorId::none;   // for layers with PositionBias::alibi
  VectorId position_bias = VectorId::none;  // for layers with PositionBias::buckets: heads x (2 position_reach + 1), as Attend has it
  std::int32_t position_reach = 0;
  PlaceTables places;                                // for layers with Attention::places
  std::vector<PoolKind> pooling = {PoolKind::mean};  // several kinds stand side by side, in this order
  std::vector<Module> modules;
  Parameter score;              // a reranker's rows of the head, one a label, which it reads at the last token
  std::int32_t vocab_size = 0;  // rows of the token embedding
  std::int32_t labels = 0;      // rows of the classifier; 0: none
  std::uint64_t parameters = 0;
  std::vector<std::shared_ptr<const files::ModelFile>> files;  // of the model, its adapters and its modules; weights are read from them
  std::vector<std::string> notes;                              // what was asked for and not done, and why
  std::vector<std::string> incomplete;  // Config::incomplete, optional tensors that are missing, and tensors that nothing reads

  const Parameter& global(Role role) const { return globals[static_cast<std::size_t>(role)]; }
  const Parameter& at(std::size_t layer, Role role) const { return layers[layer][static_cast<std::size_t>(role)]; }
  std::int32_t row_size() const {  // width of a token's row after its modules
    std::int32_t width = config.hidden_size;
    for (const Module& m : modules) width = m.on_tokens ? m.width : width;
    return width;
  }
  std::int64_t pooled_size() const {  // width of a pooled row: each kind of pooling has a part, projected where the model has a projection
    const MatrixId projection = global(Role::projection).matrix;
    return static_cast<std::int64_t>(pooling.size()) * (projection == MatrixId::none ? row_size() : matrix(projection).rows);
  }
  std::int64_t vector_size() const {  // width of a pooled row after its modules
    return modules.empty() || modules.back().on_tokens ? pooled_size() : modules.back().width;
  }
  const Matrix& matrix(MatrixId id) const { return weights.matrices[static_cast<std::size_t>(id)]; }
  const Vector& vector(VectorId id) const { return weights.vectors[static_cast<std::size_t>(id)]; }
  float number(const Parameter& parameter) const { return vector(parameter.vector).values.front(); }  // of a vector of one value

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
  // The format that float matrices are packed to while they are read. Embeddings that are not also the head keep theirs.
  std::optional<Format> quantize;
  // Automatic: an encoder's matrices may be rounded (Matrix::rounding), but for a classifier and the dense layer before it.
  Compute compute = Compute::automatic;
  std::string task;  // the adapters of this task are merged into the weights (model/adapters.h)
  std::vector<LoraSpec> lora;
};

// Throws unsupported_model and model_format as read_config() does, and for tensors that are missing, of the wrong shape or of a format not
// known.
Description describe(std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options);

}  // namespace pumice::model
