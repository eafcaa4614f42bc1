// Modules of sentence-transformers (modules.json). They follow a model's layers, and each has its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/description.h"

namespace pumice::model {

// A module as its own config.json describes it.
struct ModuleSpec {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;                                    // the module comes before pooling, or the model does not pool
  std::string file;                                          // path of model.safetensors in the module's folder; empty for normalize
  std::shared_ptr<const files::ModelFile> opened = nullptr;  // `file` if it is open already, otherwise null
  std::string tensor = "linear";                             // of dense: the matrix is named TENSOR.weight
  std::int64_t in = 0, out = 0;                              // widths of input and output rows; layer_norm has only `in`
  bool bias = true, residual = false;                        // of dense
  Activation activation = Activation::none;
};

ModuleKind module_from_name(const std::string& name);
Activation activation_from_name(const std::string& name);

// Returns the modules whose tensors are in the GGUF file of the model (Config::dense): Dense layers after pooling, without bias or
// activation.
std::vector<ModuleSpec> modules_in(const std::shared_ptr<const files::ModelFile>& file, const Config& config);

// Sets the kinds of pooling of a description, and adds modules to it, in order. If `pooling` is empty, uses the kind that the file says, or
// mean if the file does not say. Throws the errors of open_weights(). Throws ErrorKind::model_format if a tensor is missing or has the
// wrong shape, or if a module's input is not as wide as the output before it.
void add_modules(Description& d, const std::vector<PoolKind>& pooling, const std::vector<ModuleSpec>& specs);

// Turns a causal model into a reranker, whose labels are the logits of the tokens `ids` at the last position. Throws
// ErrorKind::unsupported_model if the model has no head, and ErrorKind::invalid_argument if an id is not in the vocabulary.
void add_score(Description& d, const std::vector<std::int32_t>& ids);

}  // namespace pumice::model
