// A model on disk: one view of GGUF files (also split) and safetensors folders (also sharded). Everything here is checked before
// it is shown; nothing but ModelFile reads weights. Immutable and shared: reads are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/file.h"
#include "files/metadata.h"
#include "files/tensor_info.h"

namespace pumice::files {

enum class Kind : std::uint8_t { gguf, safetensors };

class ModelFile {
 public:
  // `path`: a .gguf file (any part of a split one opens all parts), a folder with config.json and model.safetensors (or
  // model.safetensors.index.json and its shards), or a .safetensors file in a folder with config.json.
  // Throws io (cannot be opened or read), model_format (not sound: file, field and offset say where), unsupported_model (sound, but
  // of a version or byte order that is not read).
  static std::shared_ptr<const ModelFile> open(const std::string& path);
  // A .safetensors file by itself, whose configuration the caller knows: there is no metadata. Throws as open() does.
  static std::shared_ptr<const ModelFile> open_weights(const std::string& path);

  const std::string& path() const { return path_; }  // as given
  Kind kind() const { return kind_; }
  std::uint64_t size_bytes() const;                             // of all weight files
  std::uint32_t gguf_version() const { return gguf_version_; }  // 0 for safetensors

  // Tensors in the order of the files; find() by name, or null.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;

  // Bytes [offset, offset + count) of a tensor of this file, to `out`. Throws io when the file became shorter.
  void read(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, std::uint8_t* out) const;
  // All values as float32. Throws unsupported_model for formats that are not computed with, numeric for NaN and infinities.
  std::vector<float> read_floats(const TensorInfo& tensor) const;
  // The format to compute with; throws unsupported_model, naming format and tensor, when there is none.
  Format format(const TensorInfo& tensor) const;

  // Metadata: GGUF keys, or config.json with dotted keys. See metadata.h for what each getter accepts.
  const Metadata& metadata() const { return metadata_; }
  bool has(std::string_view key) const { return metadata_.has(key); }
  const Value* value(std::string_view key) const { return metadata_.value(key); }
  std::optional<bool> boolean(std::string_view key) const { return metadata_.boolean(key); }
  std::optional<std::int64_t> integer(std::string_view key) const { return metadata_.integer(key); }
  std::optional<double> number(std::string_view key) const { return metadata_.number(key); }
  std::optional<std::string> string(std::string_view key) const { return metadata_.string(key); }
  std::optional<std::vector<std::int64_t>> integer_list(std::string_view key) const { return metadata_.integer_list(key); }
  std::optional<std::vector<double>> number_list(std::string_view key) const { return metadata_.number_list(key); }
  std::optional<std::vector<std::string>> strings(std::string_view key) const { return metadata_.strings(key); }
  const std::string& json_text() const { return json_text_; }  // config.json as it is; empty for GGUF

 private:
  ModelFile() = default;
  static ModelFile open_gguf(const std::string& path, File file);
  static ModelFile open_safetensors(const std::string& path, const Folder& folder, const std::string& only_file);
  static std::shared_ptr<const ModelFile> finish(ModelFile opened, const std::string& path);
  std::vector<TensorInfo> add_safetensors(File file);
  void index_names();  // fills by_name_; throws when a name comes twice

  std::string path_;
  Kind kind_ = Kind::gguf;
  std::uint32_t gguf_version_ = 0;
  std::vector<File> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::uint32_t> by_name_;  // tensors in the order of their names: for find()
  Metadata metadata_;
  std::string json_text_;
};

}  // namespace pumice::files
