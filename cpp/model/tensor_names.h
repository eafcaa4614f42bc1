// TensorNames finds the tensor that a file has for a role. The model family lists the possible names of this tensor, for safetensors and
// for GGUF files. If several roles share a tensor, TensorNames also finds the rows of each role.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files/model_file.h"
#include "model/family.h"
#include "model/tensor_errors.h"

namespace pumice::model {

// The rows of a tensor that belong to a role. They are runs of `run` rows. The runs begin at the rows `first`, first + stride, first + 2
// stride, and so on.
struct Part {
  std::int64_t first = 0, run = 0, stride = 0;  // run is 0 if the role has all rows of the tensor from `first` on
  std::int64_t whole = 0;                       // number of rows that the tensor must have; 0 if it must have as many as the role needs
  // Converts a row number of the role to a row number of the tensor.
  std::int64_t of(std::int64_t row) const { return first + row / run * stride + row % run; }
  // Returns this part with `rows`, the number of rows of the role, in place of each 0 in `run`, `stride` and `whole`.
  Part of_rows(std::int64_t rows) const { return {first, run > 0 ? run : rows, run > 0 ? stride : rows, whole > 0 ? whole : rows}; }
};

class TensorNames {
 public:
  // Throws ErrorKind::model_format if the file has no token embedding under any of the family's prefixes, or if the file has more layers
  // than its configuration says.
  TensorNames(const files::ModelFile& file, const Config& config);

  struct Found {
    TensorName name{};
    const files::TensorInfo* tensor = nullptr;  // null if missing; the first expert's tensor if each expert has one
    Part part;                                  // the role's rows in the tensor, or in each expert's matrix
  };
  Found weight(Role role, std::size_t layer) const { return find(role, layer, "weight", "gamma"); }
  Found bias(Role role, std::size_t layer) const { return find(role, layer, "bias", "beta"); }

  // Returns the tensors of all experts if each expert has a tensor of its own, and otherwise an empty vector. Throws
  // ErrorKind::model_format if the tensor of an expert is missing.
  std::vector<const files::TensorInfo*> each_expert(const Found& found, std::size_t layer, std::int32_t experts) const;

  bool shared(Role role) const;  // true if all layers share one tensor (ALBERT)
  bool transposed(const TensorName& name) const { return name.transposed && !config_.gguf; }
  // Returns true if the tensor names begin with the prefix of a wrapper class of transformers, for example with "model." in a file that was
  // saved by a class for causal language models.
  bool wrapped() const { return !prefix_.empty(); }
  // Returns the names under which adapters may refer to a role's matrix.
  std::vector<std::string> adapter_names(Role role, std::size_t layer) const;
  // Returns the first of the possible names of a role's weight or bias.
  std::string first_name(Role role, std::size_t layer, std::string_view suffix) const;
  // The names of the tensors that no role uses, in the order of the file. Tensors of layers are in `in_layers`, for example a q_norm in a
  // Llama. Tensors that belong to other models and tasks are left out.
  struct Unread {
    std::vector<std::string> in_layers, others;
  };
  Unread unread(const std::function<bool(Role)>& reads) const;

  // Returns the GGUF name of a tensor of `role` that is named `here` in safetensors files. If there are several names, returns the one that
  // llama.cpp's converter writes. Returns an empty optional if GGUF files have no name for this tensor.
  std::optional<TensorName> in_gguf(Role role, const TensorName& here) const;
  // Returns the rows that belong to `role` in a tensor with the name `name`.
  Part layout(const TensorName& name, Role role, std::size_t layer) const;

  // Throws ErrorKind::model_format with the message that the file lacks the role's weight or bias.
  [[noreturn]] void missing(Role role, std::size_t layer, std::string_view suffix) const {
    model::missing(file_, first_name(role, layer, suffix));
  }

 private:
  std::string_view pattern(const TensorName& name) const { return config_.gguf ? name.gguf : name.safetensors; }
  bool bare(const TensorName& name) const { return name.bare == Bare::both || (name.bare == Bare::safetensors && !config_.gguf); }
  std::vector<TensorName> names_of(Role role, bool gguf) const;
  std::vector<TensorName> names_of(Role role) const { return names_of(role, config_.gguf); }
  std::vector<std::string> in_file(const TensorName& name, std::size_t layer, std::int32_t expert = 0) const;
  const files::TensorInfo* tensor(const TensorName& name, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const;
  Found find(Role role, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const;
  Part part(const TensorName& name, Role role, std::size_t layer) const;
  void choose_prefix();
  std::set<std::string> before_layers() const;
  std::set<std::string, std::less<>> names_read(const std::function<bool(Role)>& reads) const;
  bool of_other_part(std::string_view name) const;
  void require_no_more_layers() const;

  const files::ModelFile& file_;
  const Config& config_;
  std::string prefix_;
};

}  // namespace pumice::model
