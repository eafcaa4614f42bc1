// A model on disk. ModelFile has the same interface for GGUF files (also split ones) and safetensors folders (also sharded ones). open()
// checks everything but the weights themselves. Weights are read only through this class. A ModelFile does not change after it was opened,
// except for the checksums of the bytes that were read (read_sums.h). Reads are thread-safe.
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
#include "files/read_sums.h"
#include "files/tensor_info.h"

namespace pumice::files {

enum class Kind : std::uint8_t { gguf, safetensors };

class ModelFile {
 public:
  // Opens a model. `path` is a .gguf file (any part of a split model opens all parts), a folder with config.json and model.safetensors (or
  // model.safetensors.index.json and its shards), or a .safetensors file in a folder with config.json.
  // Throws io if a file cannot be opened or read, model_format if a file is damaged (the error has the file, the field and the offset), and
  // unsupported_model if a file is sound but has a version or byte order that is not supported.
  static std::shared_ptr<const ModelFile> open(const std::string& path);
  // Opens a .safetensors file that has no metadata. The caller must know its configuration. Throws as open() does.
  static std::shared_ptr<const ModelFile> open_weights(const std::string& path);

  // Returns a view of the same open files. The view keeps checksums of the bytes that are read through it (read_sums.h). Each load of a
  // model uses its own view, so that the checksums describe the weights of that model.
  std::shared_ptr<const ModelFile> summed() const;
  // Returns the checksums of this view, or null if summed() did not make this view. ReadSums has the tensors in the order of tensors().
  const ReadSums* sums() const { return sums_.get(); }
  // After this call, bytes that are read no longer change the checksums.
  void finish_sums() const {
    if (sums_) sums_->finish();
  }
  // Throws io if one of the files was written to since it was opened, because the bytes that were read may be a mixture of old and new.
  void require_unchanged() const;

  const std::string& path() const { return contents_->path; }  // the path that was passed to open()
  Kind kind() const { return contents_->kind; }
  std::uint64_t size_bytes() const;                                       // bytes of all weight files
  std::uint32_t gguf_version() const { return contents_->gguf_version; }  // 0 for safetensors
  // The name of the library that packed matrices of a safetensors folder (schemes.def), or "" if no matrix is packed. tensors() has these
  // matrices unpacked.
  const std::string& scheme() const { return contents_->scheme; }

  // tensors() returns the tensors in the order of the files. find() returns the tensor with this name, or null.
  std::span<const TensorInfo> tensors() const { return contents_->tensors; }
  const TensorInfo* find(std::string_view name) const;

  // Reads bytes [offset, offset + count) of a tensor of this file to `out`. Throws io if the file has become too short.
  void read(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, std::uint8_t* out) const;
  // Returns all values as float32. Throws unsupported_model if there are no kernels for the format, and numeric if a value is NaN or
  // infinite.
  std::vector<float> read_floats(const TensorInfo& tensor) const;
  // Returns the tensor's format. Throws unsupported_model, with the names of format and tensor, if there are no kernels for the format.
  Format format(const TensorInfo& tensor) const;

  // The metadata: the keys of a GGUF file, or config.json with dotted keys. metadata.h says what each getter accepts.
  const Metadata& metadata() const { return contents_->metadata; }
  bool has(std::string_view key) const { return contents_->metadata.has(key); }
  const Value* value(std::string_view key) const { return contents_->metadata.value(key); }
  std::optional<bool> boolean(std::string_view key) const { return contents_->metadata.boolean(key); }
  std::optional<std::int64_t> integer(std::string_view key) const { return contents_->metadata.integer(key); }
  std::optional<double> number(std::string_view key) const { return contents_->metadata.number(key); }
  std::optional<std::string> string(std::string_view key) const { return contents_->metadata.string(key); }
  std::optional<std::vector<std::int64_t>> integer_list(std::string_view key) const { return contents_->metadata.integer_list(key); }
  std::optional<std::vector<double>> number_list(std::string_view key) const { return contents_->metadata.number_list(key); }
  std::optional<std::vector<std::string>> strings(std::string_view key) const { return contents_->metadata.strings(key); }
  const std::string& json_text() const { return contents_->json_text; }  // the text of config.json; empty for GGUF

 private:
  struct Contents {
    std::string path;
    Kind kind = Kind::gguf;
    std::uint32_t gguf_version = 0;
    std::vector<File> files;
    std::vector<TensorInfo> tensors;
    std::vector<std::uint32_t> by_name;  // indices of the tensors, sorted by name, for find()
    Metadata metadata;
    Metadata hf_quant_config;  // the contents of hf_quant_config.json; empty if there is no such file beside config.json
    std::string json_text;
    std::string scheme;
  };

  ModelFile() = default;
  static Contents open_gguf(const std::string& path, File file);
  static Contents open_safetensors(const std::string& path, const Folder& folder, const std::string& only_file);
  static std::shared_ptr<const ModelFile> finish(Contents opened, const std::string& path);
  static std::vector<TensorInfo> add_safetensors(Contents& contents, File file);
  static void index_names(Contents& contents);  // fills by_name; throws if a name comes twice
  std::size_t index_of(const TensorInfo& tensor) const;
  void read_made(const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, std::uint8_t* out) const;

  std::shared_ptr<const Contents> contents_;
  std::unique_ptr<ReadSums> sums_;
};

}  // namespace pumice::files
