#include "model/lora.h"

#include <algorithm>

#include "core/error.h"
#include "core/formats.h"
#include "files/text.h"
#include "model/nearest.h"

namespace pumice::model {
namespace {

// Returns the transpose of a matrix with `rows` rows and `cols` columns.
std::vector<float> turned(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  std::vector<float> result(values.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) result[static_cast<std::size_t>(j * rows + i)] = values[static_cast<std::size_t>(i * cols + j)];
  }
  return result;
}

// Returns the sum of two low-rank matrices, by concatenating their factors along the rank.
LowRank together(const LowRank& x, const LowRank& y) {
  LowRank sum{.left = {}, .right = x.right, .rank = x.rank + y.rank, .cols = x.cols};
  sum.right.insert(sum.right.end(), y.right.begin(), y.right.end());
  sum.left.reserve(x.left.size() + y.left.size());
  const std::size_t rows = x.left.size() / static_cast<std::size_t>(x.rank);
  for (std::size_t i = 0; i < rows; ++i) {
    for (const LowRank* each : {&x, &y}) {
      const auto from = each->left.begin() + static_cast<std::ptrdiff_t>(i) * each->rank;
      sum.left.insert(sum.left.end(), from, from + each->rank);
    }
  }
  return sum;
}

}  // namespace

Lora::Lora(std::vector<LoraSpec> specs) : specs_(std::move(specs)) {
  for (const LoraSpec& spec : specs_) {
    for (const LoraModule& module : spec.modules) entries_.push_back({&spec, &module});
  }
}

bool Lora::has(std::span<const std::string> names) const {
  return std::ranges::any_of(entries_, [&](const Entry& e) { return std::ranges::find(names, e.module->name) != names.end(); });
}

std::optional<LowRank> Lora::of(std::span<const std::string> names, std::int64_t rows, std::int64_t cols) {
  if (entries_.empty()) return std::nullopt;
  asked_.insert(asked_.end(), names.begin(), names.end());
  std::optional<LowRank> all;
  for (Entry& entry : entries_) {
    if (std::ranges::find(names, entry.module->name) == names.end()) continue;
    entry.used = true;
    LowRank found = read(entry, rows, cols);
    all = all ? together(*all, found) : std::move(found);
  }
  if (all && all->rank > kMaxRank)
    fail(ErrorKind::invalid_argument, "lora: the adapters of ", names.front(), " have ranks of ", all->rank, " together; at most ",
         kMaxRank, " are run. Merge them into the model");
  return all;
}

LowRank Lora::read(const Entry& entry, std::int64_t rows, std::int64_t cols) const {
  const LoraModule& m = *entry.module;
  const std::string& path = entry.spec->file->path();
  const files::TensorInfo* b = entry.spec->file->find(m.b);
  const std::int64_t rank = b && b->shape.size() == 2 ? b->shape[1] : 0;
  if (b && rank < 1) {
    throw Error(ErrorKind::model_format,
                str(path, ": tensor ", files::printable(m.b), " must have two dimensions, the second of them the rank, at least 1"))
        .in_file(path)
        .at_field(m.b);
  }
  if (rank > kMaxRank)
    fail(ErrorKind::unsupported_model, path, ": tensor ", files::printable(m.b), " has a rank of ", rank, "; at most ", kMaxRank,
         " are run. Merge the adapter into the model");
  LowRank found{.left = {}, .right = {}, .rank = rank, .cols = cols};
  if (m.layout == LoraLayout::linear) {
    found.left = factor(entry, m.b, rows, rank);
    found.right = factor(entry, m.a, rank, cols);
  } else {
    found.right = turned(factor(entry, m.b, cols, rank), cols, rank);
    found.left = m.layout == LoraLayout::embedding ? turned(factor(entry, m.a, rank, rows), rank, rows) : factor(entry, m.a, rows, rank);
  }
  for (float& value : found.left) value *= m.scale;
  return found;
}

std::vector<float> Lora::factor(const Entry& entry, const std::string& name, std::int64_t first, std::int64_t second) const {
  const files::ModelFile& file = *entry.spec->file;
  const auto wrong = [&](const std::string& what) {
    return Error(ErrorKind::model_format, str(file.path(), ": tensor ", files::printable(name), " ", what))
        .in_file(file.path())
        .at_field(name);
  };
  const files::TensorInfo* tensor = file.find(name);
  if (!tensor) throw wrong("is missing: an adapter has two factors");
  if (tensor->shape != std::vector<std::int64_t>{first, second}) {
    std::string shape;
    for (const std::int64_t size : tensor->shape) shape += str(shape.empty() ? "" : ", ", size);
    throw wrong(str("has shape [", shape, "]; ", entry.module->name, " of this model needs [", first, ", ", second,
                    "]. Is it an adapter of another model?"));
  }
  return file.read_floats(*tensor);
}

void Lora::require_all_used(const files::ModelFile& model) const {
  for (const Entry& entry : entries_) {
    if (entry.used) continue;
    const std::string& path = entry.spec->file->path();
    const std::string_view near = nearest(entry.module->name, asked_);
    throw Error(ErrorKind::model_format, str(path, ": adapts ", files::printable(entry.module->name), ", and ", model.path(),
                                             " has no such matrix", near.empty() ? std::string() : str("; the nearest is ", near)))
        .in_file(path)
        .at_field(entry.module->a);
  }
}

}  // namespace pumice::model
