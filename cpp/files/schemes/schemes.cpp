#include "files/schemes/schemes.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/checked.h"
#include "files/schemes/folder.h"

namespace pumice::files::schemes {
namespace {

struct Scheme {
  std::string_view method;  // the value of quant_method in config.json; "" if the library writes none
  const char* name;
  void (*add)(PackedFolder&);
};
constexpr Scheme kSchemes[] = {
#define PUMICE_SCHEME(name, library, method) {method, library, add_##name},
#include "files/schemes/schemes.def"
#undef PUMICE_SCHEME
};
constexpr Scheme scheme_of(void (*add)(PackedFolder&)) { return *std::ranges::find(kSchemes, add, &Scheme::add); }

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();  // largest number of rows or columns of a matrix

}  // namespace

PackedFolder::PackedFolder(const Metadata& config, std::string prefix, std::string library, const std::vector<File>& files,
                           const std::vector<TensorInfo>& tensors)
    : config_(config), prefix_(std::move(prefix)), library_(std::move(library)), files_(files), tensors_(tensors) {
  for (const TensorInfo& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
}

bool PackedFolder::has_object(std::string_view name) const {
  const std::string members = key(name) + ".";
  const auto first = config_.entries().lower_bound(members);
  return first != config_.entries().end() && first->first.starts_with(members);
}

std::vector<std::string> PackedFolder::list(std::string_view name) const {
  const Value* value = config_.value(key(name));
  const auto* nested = value ? std::get_if<Nested>(value) : nullptr;
  if (nested && nested->items == 0) return {};
  return config_.strings(key(name)).value_or(std::vector<std::string>{});
}

std::set<std::string> PackedFolder::modules(std::initializer_list<std::string_view> suffixes, std::string_view weight_dtype) const {
  std::set<std::string> found;
  for (const TensorInfo& tensor : tensors_) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string_view suffix = std::string_view(tensor.name).substr(dot + 1);
    if (std::ranges::find(suffixes, suffix) != suffixes.end() || (suffix == "weight" && tensor.format_name == weight_dtype))
      found.insert(tensor.name.substr(0, dot));
  }
  return found;
}

std::set<std::string> PackedFolder::stacks(std::initializer_list<std::string_view> suffixes,
                                           std::initializer_list<std::string_view> dtypes) const {
  constexpr std::string_view kExperts = ".experts.";
  std::set<std::string> found;
  for (const TensorInfo& tensor : tensors_) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos || !std::string_view(tensor.name).substr(0, dot + 1).ends_with(kExperts)) continue;
    const auto suffix = std::ranges::find_if(suffixes, [&](std::string_view each) { return tensor.name.ends_with(each); });
    if (suffix != suffixes.end())
      found.insert(tensor.name.substr(0, tensor.name.size() - suffix->size()));
    else if (std::ranges::find(dtypes, tensor.format_name) != dtypes.end())
      found.insert(tensor.name);
  }
  return found;
}

const TensorInfo* PackedFolder::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo& PackedFolder::need(const std::string& name, std::initializer_list<std::string_view> dtypes) const {
  const TensorInfo* found = find(name);
  if (!found)
    fail_at(ErrorKind::model_format, config_.file(), str("tensor ", name), std::nullopt,
            "is missing; the folder has other tensors of this matrix, which ", library_, " packed");
  if (std::ranges::find(dtypes, found->format_name) == dtypes.end()) {
    std::string needed;
    for (const std::string_view dtype : dtypes) needed += str(needed.empty() ? "" : " or ", dtype);
    fail_tensor(*found, "is ", found->format_name, "; ", needed, " is needed");
  }
  return *found;
}

void PackedFolder::need_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape) const {
  const auto fits = [](std::int64_t has, std::int64_t needed) { return has > 0 && has <= kMaxLength && (needed < 0 || has == needed); };
  if (std::ranges::equal(tensor.shape, shape, fits)) return;
  const auto text = [](const std::vector<std::int64_t>& lengths) {
    std::string list;
    for (const std::int64_t length : lengths)
      list += str(list.empty() ? "" : ", ", length < 0 ? std::string("any") : std::to_string(length));
    return "[" + list + "]";
  };
  fail_tensor(tensor, "has the shape ", text(tensor.shape), "; ", text(shape), " is needed");
}

std::int64_t PackedFolder::group_size(std::string_view name, const TensorInfo& scales, std::int64_t cols, std::int64_t groups) const {
  const std::int64_t says = config_.integer(key(name)).value_or(-1);
  if (says != -1 && (says < 1 || says > kMaxLength))
    fail_at(ErrorKind::model_format, config_.file(), key(name), std::nullopt, "is ", says, "; -1 (all columns) or 1 to ", kMaxLength,
            " is needed");
  const std::int64_t group = says == -1 ? cols : std::min(says, cols);
  if (ceil_div(cols, group) != groups)
    fail_tensor(scales, "has ", groups, " groups for ", cols, " columns; with ", key(name), " ", says, " in config.json there are ",
                ceil_div(cols, group));
  return group;
}

std::vector<std::int32_t> PackedFolder::group_of_columns(const TensorInfo& index, std::int64_t cols, std::int64_t groups,
                                                         std::int64_t group) const {
  need_shape(index, {cols});
  std::vector<std::int32_t> found(static_cast<std::size_t>(cols));
  read_bytes(files_, index, 0, index.bytes, found.data());
  bool neighbours = true;
  for (std::int64_t col = 0; col < cols; ++col) {
    const std::int32_t g = found[static_cast<std::size_t>(col)];
    if (g < 0 || g >= groups) fail_tensor(index, "says that column ", col, " is of group ", g, "; there are ", groups, " groups");
    neighbours = neighbours && g == col / group;
  }
  if (neighbours) found.clear();
  return found;
}

void PackedFolder::add(Codes codes, std::initializer_list<const TensorInfo*> from) {
  for (const std::int64_t length : {codes.rows, codes.cols})
    if (length > kMaxLength) fail_tensor(codes.scales, "belongs to a matrix of ", codes.rows, " rows and ", codes.cols, " columns");
  for (const TensorInfo* tensor : from) drop(tensor);
  if (const TensorInfo* weight = find(codes.module, "weight"); weight && !replaced_.contains(weight))
    fail_tensor(*weight, "is there beside ", codes.scales.name, ", which belongs to a packed form of the same matrix");
  add(made_of(std::move(codes)), {});
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

std::string add_schemes(const Metadata& config, const Metadata& hf_quant_config, const std::vector<File>& files,
                        std::vector<TensorInfo>& tensors) {
  const auto apply = [&](const Scheme& scheme, std::string prefix, const Metadata& says) {
    PackedFolder folder(says, std::move(prefix), scheme.name, files, tensors);
    scheme.add(folder);
    const bool packed = folder.has_made();
    tensors = std::move(folder).finish();
    return packed ? std::string(scheme.name) : "";
  };
  for (const char* outer : {"", "text_config."}) {  // the keys may be in text_config, which describes the text part of a multimodal model
    const std::string prefix = str(outer, "quantization_config.");
    const auto* method = std::get_if<std::string>(config.value(prefix + "quant_method"));
    if (!method) continue;
    std::string_view name = *method;
    if (name == "auto-round" || name == "intel/auto-round") {  // AutoRound packs matrices as GPTQ or AWQ does
      const std::string packing = config.string(prefix + "packing_format").value_or("");
      name = packing.ends_with("gptq") ? "gptq" : packing.ends_with("awq") ? "awq" : "";
    }
    for (const Scheme& scheme : kSchemes)
      if (!scheme.method.empty() && scheme.method == name) return apply(scheme, prefix, config);
    return "";
  }
  if (config.has("quantization.group_size") && config.has("quantization.bits")) return apply(scheme_of(add_mlx), "quantization.", config);
  if (hf_quant_config.string("quantization.quant_algo")) return apply(scheme_of(add_modelopt), "quantization.", hf_quant_config);
  return "";
}

}  // namespace pumice::files::schemes
