// Finds the tensor of a file that belongs to a role, by the names that the family has in this kind of file. If several roles share a
// tensor, also finds the part of it that belongs to the role.
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

// The rows of a tensor that belong to a role: runs of `run` rows that begin at the rows `first`, first + stride, first + 2 stride and so
// on.
struct Part {
  std::int64_t first = 0, run = 0, stride = 0;  // run 0: all rows from `first` on
  std::int64_t whole = 0;                       // number of rows that the whole tensor must have; 0: as many as the role needs
  // Returns the index in the tensor of the role's row `row`.
  std::int64_t of(std::int64_t row) const { return first + row / run * stride + row % run; }
  // Returns the part of a role with `rows` rows: `run`, `stride` and `whole` have their values where they were 0.
  Part of_rows(std::int64_t rows) const { return {first, run > 0 ? run : rows, run > 0 ? stride : rows, whole > 0 ? whole : rows}; }
};

class TensorNames {
 public:
  // Throws ErrorKind::model_format if no prefix of the family fits the file, or if the file has more layers than its configuration says.
  TensorNames(const files::ModelFile& file, const Config& config);

  struct Found {
    TensorName name{};
    const files::TensorInfo* tensor = nullptr;  // null if the file has no such tensor; the first expert's if each expert has one
    Part part;                                  // of each expert, if the role has several
  };
  Found weight(Role role, std::size_t layer) const { return find(role, layer, "weight", "gamma"); }
  Found bias(Role role, std::size_t layer) const { return find(role, layer, "bias", "beta"); }

  // Returns the tensors of all experts, if each expert has a tensor of its own, or else an empty vector. Throws ErrorKind::model_format if
  // one of them is missing.
  std::vector<const files::TensorInfo*> each_expert(const Found& found, std::size_t layer, std::int32_t experts) const;

  bool shared(Role role) const;  // true if all layers share one tensor (ALBERT)
  bool transposed(const TensorName& name) const { return name.transposed && !config_.gguf; }
  // Returns whether the tensor names of the body have the prefix of a task's wrapper class of transformers.
  bool wrapped() const { return !prefix_.empty(); }
  // Returns the names under which adapters may refer to a role's matrix.
  std::vector<std::string> adapter_names(Role role, std::size_t layer) const;
  // Returns the first of the possible names of a role's weight or bias.
  std::string first_name(Role role, std::size_t layer, std::string_view suffix) const;
  // The names of the tensors that no role uses, in the order of the file: those of layers, such as a q_norm in a Llama, and others. Tensors
  // of other models and tasks do not count.
  struct Unread {
    std::vector<std::string> in_layers, others;
  };
  Unread unread(const std::function<bool(Role)>& reads) const;

  // Of a folder: returns the name that GGUF files have for the tensor in a role that the folder has under the name `here`, or nothing if
  // they have none. Where they may have several, it is the name that llama.cpp's converter writes.
  std::optional<TensorName> in_gguf(Role role, const TensorName& here) const;
  // Returns the part of a tensor with this name that belongs to the role.
  Part layout(const TensorName& name, Role role, std::size_t layer) const;

  // Throws ErrorKind::model_format because the file lacks a role's weight or bias.
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
