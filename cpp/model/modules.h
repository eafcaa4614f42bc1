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
  std::string file;                                          // model.safetensors of its folder; normalize: none
  std::shared_ptr<const files::ModelFile> opened = nullptr;  // that file, where it is open already
  std::string tensor = "linear";                             // of a dense one: its matrix is TENSOR.weight
  std::int64_t in = 0, out = 0;                              // dense: sizes of its rows; layer_norm: `in`
  bool bias = true, residual = false;                        // of a dense one
  Activation activation = Activation::none;
};

ModuleKind module_from_name(const std::string& name);
Activation activation_from_name(const std::string& name);

// The modules in a GGUF file itself (Config::dense): Dense layers after pooling, without bias or activation.
std::vector<ModuleSpec> modules_in(const std::shared_ptr<const files::ModelFile>& file, const Config& config);

// Adds to a description what it pools by (empty: what its file says, or mean) and its modules, in order.
// Throws model_format for tensors that are missing or do not fit and for sizes that do not follow from one another; what open_weights()
// throws.
void add_modules(Description& d, const std::vector<PoolKind>& pooling, const std::vector<ModuleSpec>& specs);

// Makes a causal model a reranker: its labels are the logits of these ids at the last token. Throws unsupported_model where there is
// no head, invalid_argument for an id that is no token.
void add_score(Description& d, const std::vector<std::int32_t>& ids);

}  // namespace pumice::model
