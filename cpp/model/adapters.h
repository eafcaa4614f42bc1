// Low-rank adapters (Hu et al. 2021) in the model's own file, with one set of adapters per task (jina-embeddings-v3). The adapters of the
// chosen task are added to the weights while the weights are read from the file, so code outside of model/ sees only the resulting weights.
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
  // `task` is one of config.json's lora_adaptations, or kNoTask, which leaves the weights as they are. If the file has adapters and `task`
  // is unknown or empty, throws ErrorKind::invalid_argument with the list of tasks. If the file has no adapters, throws
  // ErrorKind::invalid_argument unless `task` is empty or kNoTask.
  Adapters(std::shared_ptr<const files::ModelFile> file, const std::string& task);

  // If a weight has adapters, its tensor's name ends with kOriginal (torch.nn.utils.parametrize).
  static constexpr std::string_view kOriginal = ".parametrizations.weight.original";
  static constexpr std::string_view kNoTask = "none";

  // Returns a function that adds the task's adapter to rows of `tensor`, or an empty function if the tensor has no adapter. `embedding`
  // must be true for embedding tables, because the file stores their factors A and B in each other's place. Throws ErrorKind::model_format
  // if a factor is missing or has the wrong shape.
  AddRow of(const files::TensorInfo& tensor, bool embedding) const;

 private:
  std::vector<float> factor(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  const files::TensorInfo& find(const std::string& name) const;

  std::shared_ptr<const files::ModelFile> file_;
  std::int64_t tasks_ = 0, task_ = -1, rank_ = 0;
  float scale_ = 0;
};

}  // namespace pumice::model
