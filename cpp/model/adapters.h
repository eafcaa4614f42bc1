// Low-rank adapters (Hu et al. 2021) that lie in the model's own file, one set per task (jina-embeddings-v3). The set of the chosen task is
// added to the weights while they are read from the file, so the layers below model/ see plain weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/model_file.h"
#include "model/low_rank.h"

namespace pumice::model {

class Adapters {
 public:
  // `task` is one of config.json's lora_adaptations, or kNoTask, which leaves the weights as they are. Throws invalid_argument with the
  // list of tasks if `task` is unknown, if it is empty although the file has adapters, or if the file has no adapters for a given task.
  Adapters(std::shared_ptr<const files::ModelFile> file, const std::string& task);

  // Names of weights that have adapters end in this (torch.nn.utils.parametrize).
  static constexpr std::string_view kOriginal = ".parametrizations.weight.original";
  static constexpr std::string_view kNoTask = "none";

  // Returns a function that adds the task's adapter to rows of `tensor`, or an empty one if the tensor has no adapter. `embedding` says
  // that the tensor is an embedding table, for which the file stores factors A and B swapped. Throws model_format for factors that do not
  // fit.
  AddRow of(const files::TensorInfo& tensor, bool embedding) const;

 private:
  std::vector<float> factor(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  const files::TensorInfo& find(const std::string& name) const;

  std::shared_ptr<const files::ModelFile> file_;
  std::int64_t tasks_ = 0, task_ = -1, rank_ = 0;
  float scale_ = 0;
};

}  // namespace pumice::model
