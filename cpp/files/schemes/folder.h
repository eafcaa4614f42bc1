// Finds and checks the tensors and settings of a safetensors folder whose matrices a library packed. The functions for all libraries
// (schemes.def) use the class PackedFolder.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/metadata.h"
#include "files/schemes/codes.h"
#include "files/schemes/columns.h"
#include "files/text.h"

namespace pumice::files::schemes {

class PackedFolder {
 public:
  // `prefix` is the beginning of the keys of `config` that describe the packing, "quantization_config." for example. `library` is the name
  // of the library that packed the matrices, for messages.
  PackedFolder(const Metadata& config, std::string prefix, std::string library, const std::vector<File>& files,
               const std::vector<TensorInfo>& tensors);

  const Metadata& config() const { return config_; }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  // Returns whether config() has an object with members under key(name).
  bool has_object(std::string_view name) const;
  // Returns the list of names under key(name); an empty list if the key is missing.
  std::vector<std::string> list(std::string_view name) const;
  std::span<const File> files() const { return files_; }

  // Returns the names of the modules that have a tensor with one of these suffixes or, unless `weight_dtype` is "", a weight of this dtype.
  std::set<std::string> modules(std::initializer_list<std::string_view> suffixes, std::string_view weight_dtype = "") const;
  // Returns the names of the stacks that have one of the dtypes, or for which there is a tensor called STACK + suffix. A stack is a tensor
  // with the matrices of all experts, called experts.gate_up_proj, for example. (A single expert's matrix is called
  // experts.0.gate_proj.weight.)
  std::set<std::string> stacks(std::initializer_list<std::string_view> suffixes, std::initializer_list<std::string_view> dtypes) const;
  const TensorInfo* find(const std::string& name) const;
  const TensorInfo* find(const std::string& module, std::string_view suffix) const { return find(str(module, ".", suffix)); }
  // Returns the tensor of this name. Throws if there is none, or if it has none of the dtypes.
  const TensorInfo& need(const std::string& name, std::initializer_list<std::string_view> dtypes) const;
  const TensorInfo& need(const std::string& module, std::string_view suffix, std::initializer_list<std::string_view> dtypes) const {
    return need(str(module, ".", suffix), dtypes);
  }
  // Throws unless the tensor has this shape. In `shape`, -1 stands for any length. Each length must be from 1 to 2^31 - 1, so that products
  // of two lengths, or of a length and a number of bits, do not overflow.
  void need_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape) const;
  // Returns the number of columns in a group, which is the value of key(name) in config(). If that is -1 or missing, all columns are one
  // group. Throws if `cols` columns do not make `groups` groups of this size. The last group may have fewer columns than the others.
  std::int64_t group_size(std::string_view name, const TensorInfo& scales, std::int64_t cols, std::int64_t groups) const;
  // Returns the group of each column, which the tensor `index` holds. Returns an empty vector if each group consists of `group`
  // neighbouring columns.
  std::vector<std::int32_t> group_of_columns(const TensorInfo& index, std::int64_t cols, std::int64_t groups, std::int64_t group) const;

  // Returns a reader of transposed tensors, whose columns are the rows of a matrix with `rows` rows.
  std::shared_ptr<const Columns> columns(std::vector<ColumnTensor> tensors, std::int64_t rows) const {
    return std::make_shared<const Columns>(std::move(tensors), rows, slices_);
  }
  // Adds a made tensor, and removes the tensors `from`, of which it is made. Null pointers in `from` are ignored.
  void add(Codes codes, std::initializer_list<const TensorInfo*> from);
  void add(TensorInfo made, std::initializer_list<const TensorInfo*> from);
  // Removes a tensor that is not needed. Does nothing if `tensor` is null.
  void drop(const TensorInfo* tensor);
  bool has_made() const { return !made_.empty(); }
  // Returns the tensors of the folder: without the removed ones, and with the added ones.
  std::vector<TensorInfo> finish() &&;

  template <class... Parts>
  [[noreturn]] void fail_tensor(const TensorInfo& tensor, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, files_[tensor.file].path(), "tensor " + tensor.name, std::nullopt, parts...);
  }
  template <class... Parts>
  [[noreturn]] void unsupported(std::string_view name, const Parts&... parts) const {
    fail_at(ErrorKind::unsupported_model, config_.file(), key(name), std::nullopt, parts...);
  }

 private:
  const Metadata& config_;
  std::string prefix_, library_;
  const std::vector<File>& files_;
  const std::vector<TensorInfo>& tensors_;
  std::map<std::string_view, const TensorInfo*> by_name_;
  std::set<const TensorInfo*> replaced_;
  std::vector<TensorInfo> made_;
  std::shared_ptr<Slices> slices_ = std::make_shared<Slices>();
};

// add_NAME(folder) unpacks the matrices that the library NAME of schemes.def has packed. Each function is in a file of its own.
#define PUMICE_SCHEME(name, library, method) void add_##name(PackedFolder& folder);
#include "files/schemes/schemes.def"
#undef PUMICE_SCHEME

}  // namespace pumice::files::schemes
