// Which tensor of a file belongs to a role: names of the family in its kind of file, and a role's part of a tensor that several share.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files/model_file.h"
#include "model/family.h"
#include "model/tensor_errors.h"

namespace pumice::model {

// The rows of a tensor that belong to a role: runs of `run` rows, `stride` apart, from row `first` on.
struct Part {
  std::int64_t first = 0, run = 0, stride = 0;  // run 0: all rows from `first` on
  std::int64_t whole = 0;                       // rows that the whole tensor must have; 0: as many as the role
  std::int64_t of(std::int64_t row) const { return first + row / run * stride + row % run; }
};

class TensorNames {
 public:
  // Throws model_format where no prefix of the family fits the file, and where the file has more layers than its configuration says.
  TensorNames(const files::ModelFile& file, const Config& config);

  struct Found {
    TensorName name{};
    const files::TensorInfo* tensor = nullptr;  // null: the file has none
    Part part;
  };
  Found weight(Role role, std::size_t layer) const { return find(role, layer, "weight", "gamma"); }
  Found bias(Role role, std::size_t layer) const { return find(role, layer, "bias", "beta"); }

  bool shared(Role role) const;  // one tensor for all layers (ALBERT)
  bool transposed(const TensorName& name) const { return name.transposed && !config_.gguf; }
  bool wrapped() const { return !prefix_.empty(); }  // the body's tensor names have the prefix of a task's wrapper class
  // Returns the names under which adapters may refer to a role's matrix.
  std::vector<std::string> adapter_names(Role role, std::size_t layer) const;
  // The first name of a role's weight or bias.
  std::string first_name(Role role, std::size_t layer, std::string_view suffix) const;
  // Returns a sentence that lists layers' tensors that no role uses, such as a q_norm in a Llama. Empty if there are none.
  std::string unread(const std::function<bool(Role)>& reads) const;

  // Throws model_format: the file lacks a role's weight or bias.
  [[noreturn]] void missing(Role role, std::size_t layer, std::string_view suffix) const {
    model::missing(file_, first_name(role, layer, suffix));
  }

 private:
  std::string_view pattern(const TensorName& name) const { return config_.gguf ? name.gguf : name.safetensors; }
  bool bare(const TensorName& name) const { return name.bare && !config_.gguf; }
  std::vector<TensorName> names_of(Role role) const;
  std::vector<std::string> in_file(const TensorName& name, std::size_t layer) const;
  const files::TensorInfo* tensor(const TensorName& name, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const;
  Found find(Role role, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const;
  Part part(const TensorName& name, Role role, std::size_t layer) const;
  void choose_prefix();
  std::set<std::string> before_layers() const;
  void require_no_more_layers() const;

  const files::ModelFile& file_;
  const Config& config_;
  std::string prefix_;
};

}  // namespace pumice::model
