// Modules of sentence-transformers (modules.json): they follow a model's layers, and each has a file of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/description.h"

namespace pumice::model {

// A module as its config.json describes it.
struct ModuleSpec {
  ModuleKind kind = ModuleKind::dense;
  bool on_tokens = false;                                    // before pooling, or in a model that does not pool
  std::string file;                                          // model.safetensors in its folder; empty for normalize
  std::shared_ptr<const files::ModelFile> opened = nullptr;  // that file, or null if it is not open yet
  std::string tensor = "linear";                             // dense: its matrix is named TENSOR.weight
  std::int64_t in = 0, out = 0;                              // dense: widths of input and output rows; layer_norm: only `in`
  bool bias = true, residual = false;                        // of a dense one
  Activation activation = Activation::none;
};

ModuleKind module_from_name(const std::string& name);
Activation activation_from_name(const std::string& name);

// Returns the modules that a GGUF file itself has (Config::dense): Dense layers after pooling, without bias or activation.
std::vector<ModuleSpec> modules_in(const std::shared_ptr<const files::ModelFile>& file, const Config& config);

// Sets a description's kinds of pooling and its modules, in order. If `pooling` is empty, the file's kind is used, or else mean.
// Throws what open_weights() throws, and model_format if a tensor is missing or does not fit, or if a module's input is not as wide as the
// output before it.
void add_modules(Description& d, const std::vector<PoolKind>& pooling, const std::vector<ModuleSpec>& specs);

// Makes a causal model a reranker whose labels are the logits of these ids at the last token. Throws unsupported_model if the model has
// no head, invalid_argument for an id that is not in the vocabulary.
void add_score(Description& d, const std::vector<std::int32_t>& ids);

}  // namespace pumice::model
