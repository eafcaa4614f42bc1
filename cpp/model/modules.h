// Adds modules of sentence-transformers (modules.json) to a description. They run after the model's layers. The weights of a module are in
// its own file or in the model's GGUF file.
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
  bool on_tokens = false;                                    // true: the module comes before pooling, or the model does not pool
  std::string file;                                          // path of model.safetensors in the module's folder; empty for normalize
  std::shared_ptr<const files::ModelFile> opened = nullptr;  // the opened `file`; null: add_modules() opens it
  // For dense modules: the name of the matrix is `tensor` followed by ".weight".
  std::string tensor = "linear";
  // Numbers of columns of the input rows and of the output rows. Modules of the kind layer_norm have only `in`.
  std::int64_t in = 0, out = 0;
  // For dense modules. `bias`: the module has a bias. `residual`: the input is added to the output (Module::residual).
  bool bias = true, residual = false;
  Activation activation = Activation::none;
};

ModuleKind module_from_name(const std::string& name);
Activation activation_from_name(const std::string& name);

// Returns the modules whose tensors are in the model's own GGUF file (Config::dense). They are dense layers after pooling, without bias or
// activation.
std::vector<ModuleSpec> modules_in(const std::shared_ptr<const files::ModelFile>& file, const Config& config);

// Sets the kinds of pooling of a description, and adds modules to it in order. If `pooling` is empty, the model's file decides the kind of
// pooling, and the kind is mean if the file has none. Throws the errors of open_weights(). Throws ErrorKind::model_format if a tensor is
// missing or has the wrong shape, or if a module needs rows of another width than it gets.
void add_modules(Description& d, const std::vector<PoolKind>& pooling, const std::vector<ModuleSpec>& specs);

// Makes a causal model a reranker. Its labels are the logits of the tokens `ids` at the last position. Throws ErrorKind::unsupported_model
// if the model has no head, and ErrorKind::invalid_argument if an id is not in the vocabulary.
void add_score(Description& d, const std::vector<std::int32_t>& ids);

}  // namespace pumice::model
