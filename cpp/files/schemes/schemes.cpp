#include "files/schemes/schemes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

struct Scheme {
  std::string_view method;  // quant_method in config.json
  const char* name;
  void (*add)(PackedFolder&);
};
constexpr Scheme kSchemes[] = {
    {"gptq", "GPTQ", add_gptq},
    {"awq", "AWQ", add_awq},
    {"compressed-tensors", "compressed-tensors", add_compressed_tensors},
};
constexpr Scheme kMlx = {"", "MLX", add_mlx};  // has no quant_method

}  // namespace

PackedFolder::PackedFolder(const Metadata& config, std::string prefix, const std::vector<File>& files,
                           const std::vector<TensorInfo>& tensors)
    : config_(config), prefix_(std::move(prefix)), files_(files), tensors_(tensors) {
  for (const TensorInfo& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
}

std::set<std::string> PackedFolder::modules(std::initializer_list<std::string_view> suffixes) const {
  std::set<std::string> found;
  for (const TensorInfo& tensor : tensors_) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos) continue;
    if (std::ranges::find(suffixes, std::string_view(tensor.name).substr(dot + 1)) != suffixes.end())
      found.insert(tensor.name.substr(0, dot));
  }
  return found;
}

const TensorInfo* PackedFolder::find(const std::string& module, std::string_view suffix) const {
  const auto found = by_name_.find(str(module, ".", suffix));
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo& PackedFolder::need(const std::string& module, std::string_view suffix,
                                     std::initializer_list<std::string_view> dtypes) const {
  const TensorInfo* found = find(module, suffix);
  if (!found)
    fail_at(ErrorKind::model_format, config_.file(), str("tensor ", module, ".", suffix), std::nullopt, "is missing; ",
            config_.string(key("quant_method")).value_or("MLX"), " packs a matrix in several tensors, and has others of this one");
  if (std::ranges::find(dtypes, found->format_name) == dtypes.end()) {
    std::string needed;
    for (const std::string_view dtype : dtypes) needed += str(needed.empty() ? "" : " or ", dtype);
    fail_tensor(*found, "is ", found->format_name, "; ", needed, " is needed");
  }
  return *found;
}

void PackedFolder::need_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape) const {
  const auto fits = [](std::int64_t has, std::int64_t needed) { return needed < 0 ? has > 0 : has == needed; };
  if (std::ranges::equal(tensor.shape, shape, fits)) return;
  const auto text = [](const std::vector<std::int64_t>& lengths) {
    std::string list;
    for (const std::int64_t length : lengths)
      list += str(list.empty() ? "" : ", ", length < 0 ? std::string("any") : std::to_string(length));
    return "[" + list + "]";
  };
  fail_tensor(tensor, "has the shape ", text(tensor.shape), "; ", text(shape), " is needed");
}

void PackedFolder::add(TensorInfo made, std::initializer_list<const TensorInfo*> from) {
  for (const TensorInfo* tensor : from) drop(tensor);
  made_.push_back(std::move(made));
}

void PackedFolder::drop(const TensorInfo* tensor) {
  if (tensor) replaced_.insert(tensor);
}

std::vector<TensorInfo> PackedFolder::finish() && {
  std::vector<TensorInfo> all;
  all.reserve(tensors_.size() - replaced_.size() + made_.size());
  for (const TensorInfo& tensor : tensors_)
    if (!replaced_.contains(&tensor)) all.push_back(tensor);
  std::ranges::move(made_, std::back_inserter(all));
  return all;
}

std::string add_schemes(const Metadata& config, const std::vector<File>& files, std::vector<TensorInfo>& tensors) {
  const auto apply = [&](const Scheme& scheme, std::string prefix) {
    PackedFolder folder(config, std::move(prefix), files, tensors);
    scheme.add(folder);
    tensors = std::move(folder).finish();
    return std::string(scheme.name);
  };
  for (const char* outer : {"", "text_config."}) {  // the text part of a multimodal model may have the keys
    const std::string prefix = str(outer, "quantization_config.");
    const auto* method = std::get_if<std::string>(config.value(prefix + "quant_method") ? config.value(prefix + "quant_method") : nullptr);
    if (!method) continue;
    std::string_view name = *method;
    if (name == "auto-round" || name == "intel/auto-round") {  // packs as others do
      const std::string packing = config.string(prefix + "packing_format").value_or("");
      name = packing.ends_with("gptq") ? "gptq" : packing.ends_with("awq") ? "awq" : "";
    }
    for (const Scheme& scheme : kSchemes)
      if (scheme.method == name) return apply(scheme, prefix);
    return "";
  }
  if (config.has("quantization.group_size") && config.has("quantization.bits")) return apply(kMlx, "quantization.");
  return "";
}

}  // namespace pumice::files::schemes
