#include "model/adapters.h"

#include <algorithm>

#include "core/error.h"
#include "core/formats.h"
#include "files/text.h"
#include "model/reader.h"

namespace pumice::model {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", "\"", name, "\"");
  return text;
}

}  // namespace

Adapters::Adapters(std::shared_ptr<const files::ModelFile> file, const std::string& task) : file_(std::move(file)) {
  const bool gguf = file_->kind() == files::Kind::gguf;
  const auto tasks = gguf ? std::nullopt : file_->strings("lora_adaptations");
  const auto known = tasks.value_or(std::vector<std::string>{});
  if (known.empty()) {
    require(task.empty() || task == kNoTask, "task=", files::quote(task), ": ", file_->path(), " has no adapters by task",
            gguf ? "; GGUF files of jina v3 keep them apart" : " (lora_adaptations in config.json)");
    return;
  }
  const std::string choice = str(file_->path(), " has adapters for the tasks ", listed(known),
                                 ": load(task=...) says whose are merged, and \"", kNoTask, "\" merges none");
  require(!task.empty(), choice);
  if (task == kNoTask) return;
  const auto at = std::ranges::find(known, task);
  require(at != known.end(), "task=", files::quote(task), " is not known; ", choice);
  const Reader read(*file_);
  tasks_ = static_cast<std::int64_t>(known.size());
  task_ = at - known.begin();
  rank_ = read.size("", "lora_rank", kMaxRank);
  scale_ = static_cast<float>(read.positive("", "lora_alpha", 1) / static_cast<double>(rank_));
}

const files::TensorInfo& Adapters::find(const std::string& name) const {
  if (const files::TensorInfo* found = file_->find(name)) return *found;
  throw Error(ErrorKind::model_format, str(file_->path(), ": tensor ", name, " is missing: the task's adapter needs it"))
      .in_file(file_->path())
      .at_field(name);
}

// Reads a low-rank factor of the chosen task from the tensor `name`, which has the shape [tasks, rows, cols].
std::vector<float> Adapters::factor(const std::string& name, std::int64_t rows, std::int64_t cols) const {
  const files::TensorInfo& tensor = find(name);
  const Format format = file_->format(tensor);
  if (tensor.shape != std::vector<std::int64_t>{tasks_, rows, cols} || info(format).block != 1) {
    throw Error(ErrorKind::model_format, str(file_->path(), ": tensor ", name, " does not have the shape [", tasks_, ", ", rows, ", ", cols,
                                             "] of floats that lora_adaptations, lora_rank and its matrix need"))
        .in_file(file_->path())
        .at_field(name);
  }
  const auto bytes = static_cast<std::uint64_t>(row_bytes(format, rows * cols));
  std::vector<std::uint8_t> packed(bytes);
  file_->read(tensor, static_cast<std::uint64_t>(task_) * bytes, bytes, packed.data());
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  unpack(format, packed.data(), rows * cols, values.data());
  return values;
}

AddRow Adapters::of(const files::TensorInfo& tensor, bool embedding) const {
  if (task_ < 0 || !std::string_view(tensor.name).ends_with(kOriginal) || tensor.shape.size() != 2) return {};
  const std::string at = tensor.name.substr(0, tensor.name.size() - std::string_view("original").size()) + "0.";
  const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  LowRank factors{.left = factor(at + (embedding ? "lora_A" : "lora_B"), rows, rank_),
                  .right = factor(at + (embedding ? "lora_B" : "lora_A"), rank_, cols),
                  .rank = rank_,
                  .cols = cols};
  for (float& value : factors.left) value *= scale_;
  return adding(std::move(factors));
}

}  // namespace pumice::model
