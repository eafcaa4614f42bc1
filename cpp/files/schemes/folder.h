// What the schemes share: a folder's tensors by module, and checks of them.
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
  // `prefix` begins the keys of `config` that describe the packing, "quantization_config." for example. `library` is for messages.
  PackedFolder(const Metadata& config, std::string prefix, std::string library, const std::vector<File>& files,
               const std::vector<TensorInfo>& tensors);

  const Metadata& config() const { return config_; }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  // Returns whether config.json has an object with members under this key.
  bool has_object(std::string_view name) const;
  // Returns a list of names. A key that is missing, or has no items, is an empty list.
  std::vector<std::string> list(std::string_view name) const;
  std::span<const File> files() const { return files_; }

  // Returns the modules that have a tensor with one of these suffixes, or a weight of this dtype, in the order of their names.
  std::set<std::string> modules(std::initializer_list<std::string_view> suffixes, std::string_view weight_dtype = "") const;
  // Returns the names of stacks, which are tensors with the matrices of all experts: those with a tensor STACK + suffix, and those that
  // have one of the dtypes. A stack is called experts.gate_up_proj, and an expert's own matrix experts.0.gate_proj.weight.
  std::set<std::string> stacks(std::initializer_list<std::string_view> suffixes, std::initializer_list<std::string_view> dtypes) const;
  const TensorInfo* find(const std::string& name) const;
  const TensorInfo* find(const std::string& module, std::string_view suffix) const { return find(str(module, ".", suffix)); }
  // Returns a tensor that must be there and have one of the dtypes.
  const TensorInfo& need(const std::string& name, std::initializer_list<std::string_view> dtypes) const;
  const TensorInfo& need(const std::string& module, std::string_view suffix, std::initializer_list<std::string_view> dtypes) const {
    return need(str(module, ".", suffix), dtypes);
  }
  // Throws unless the tensor has this shape; -1 stands for any length from 1 to 2^31 - 1. So products of two lengths, or of a length and a
  // number of bits, do not overflow.
  void need_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape) const;
  // Returns the columns of a group, as `name` in config.json says: -1 or nothing stands for all columns. Throws if `groups` of them do not
  // make up `cols` columns. The last group may have fewer columns than the others.
  std::int64_t group_size(std::string_view name, const TensorInfo& scales, std::int64_t cols, std::int64_t groups) const;
  // Returns the group of each column, which `index` holds. Returns nothing if each group consists of `group` neighbouring columns.
  std::vector<std::int32_t> group_of_columns(const TensorInfo& index, std::int64_t cols, std::int64_t groups, std::int64_t group) const;

  // Returns a reader of tensors that have the rows of a matrix as columns.
  std::shared_ptr<const Columns> columns(std::vector<ColumnTensor> tensors, std::int64_t rows) const {
    return std::make_shared<const Columns>(std::move(tensors), rows, slices_);
  }
  // Puts a made tensor in the place of the tensors that it is made of. Null pointers are no tensors.
  void add(Codes codes, std::initializer_list<const TensorInfo*> from);
  void add(TensorInfo made, std::initializer_list<const TensorInfo*> from);
  // Leaves out a tensor that results do not depend on.
  void drop(const TensorInfo* tensor);
  bool has_made() const { return !made_.empty(); }
  // Returns the tensors of the folder with what was added and without what was replaced.
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

// The schemes, each in a file of its own.
#define PUMICE_SCHEME(name, library, method) void add_##name(PackedFolder& folder);
#include "files/schemes/schemes.def"
#undef PUMICE_SCHEME

}  // namespace pumice::files::schemes
