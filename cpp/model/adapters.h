// Low-rank adapters (Hu et al. 2021) that a file keeps beside its weights, a set for each task: jina-embeddings-v3. Those of the asked task
// are added to the weights while these are read, so nothing below model/ knows of them.
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
  // `task`: one of config.json's lora_adaptations; kNoTask leaves the weights as they are. Throws invalid_argument, naming the tasks, for
  // another one, for none where the file has adapters, and for one where it has none.
  Adapters(std::shared_ptr<const files::ModelFile> file, const std::string& task);

  // The end of the name of a weight with adapters (torch.nn.utils.parametrize).
  static constexpr std::string_view kOriginal = ".parametrizations.weight.original";
  static constexpr std::string_view kNoTask = "none";

  // Adds the task's factors to rows of `tensor`; empty where there are none. `embedding`: the table of an Embed, whose two factors have
  // changed places. Throws model_format for factors that do not fit.
  AddRow of(const files::TensorInfo& tensor, bool embedding) const;

 private:
  std::vector<float> factor(const std::string& name, std::int64_t rows, std::int64_t cols) const;
  const files::TensorInfo& find(const std::string& name) const;

  std::shared_ptr<const files::ModelFile> file_;
  std::int64_t tasks_ = 0, task_ = -1, rank_ = 0;
  float scale_ = 0;
};

}  // namespace pumice::model
