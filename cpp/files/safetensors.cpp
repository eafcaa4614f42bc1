#include "files/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/checked.h"
#include "files/byte_reader.h"
#include "files/json.h"
#include "files/limits.h"

namespace pumice::files {
namespace {

// A dtype of the reference implementation (safetensors/src/tensor.rs). kDtypes also has the dtypes for which pumice has no format, because
// a file may hold unused tensors of any dtype.
struct Dtype {
  std::string_view name;
  std::uint64_t bits;
  std::optional<Format> format;
};
constexpr Dtype kDtypes[] = {
    {"F32", 32, Format::F32},
    {"F16", 16, Format::F16},
    {"BF16", 16, Format::BF16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"I32", 32, {}},
    {"I16", 16, {}},
    {"I8", 8, {}},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"U16", 16, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F4", 4, {}},
    {"C64", 64, {}},
};

constexpr std::uint64_t kLengthBytes = 8;

// Builds the list of tensors from the events of a header, which looks like this:
// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"format": "pt"}}
class HeaderBuilder : public JsonEvents {
 public:
  HeaderBuilder(const File& file, std::uint32_t file_index, std::uint64_t data_start)
      : file_(file), file_index_(file_index), data_start_(data_start), data_bytes_(file.size() - data_start) {}

  void begin_object() override {
    if (depth_++ == 0) return;
    if (depth_ != 2) wrong();
    seen_ = {};
    tensor_ = {};
    tensor_.file = file_index_;
    tensor_.name = name_;
    field_ = kNoField;
  }
  void key(std::string name) override {
    if (depth_ == 1) {
      name_ = std::move(name);
      in_metadata_ = name_ == "__metadata__";
      if (in_metadata_ && std::exchange(metadata_seen_, true)) fail("comes twice");
      if (!in_metadata_ && tensors_.size() == kMaxTensors) fail("the file has more than ", kMaxTensors, " tensors");
      return;
    }
    if (in_metadata_) {
      if (metadata_keys_.size() == kMaxKeys) fail("has more than ", kMaxKeys, " keys");
      if (!metadata_keys_.insert(name).second) fail("has the key ", quote(name), " twice");
      return;
    }
    field_ = static_cast<std::size_t>(std::ranges::find(kFields, name) - kFields.begin());
    if (field_ == kNoField) fail("has the unknown key ", quote(name));
    if (std::exchange(seen_[field_], true)) fail("has ", name, " twice");
  }
  void end_object() override {
    if (--depth_ == 1 && !in_metadata_) add_tensor();
  }
  void begin_array() override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == kDtype) wrong();
    in_array_ = true;
    items_ = 0;
  }
  void end_array() override {
    in_array_ = false;
    if (field_ == kOffsets && items_ != 2) fail("has ", items_, " data_offsets; begin and end are needed");
  }
  void scalar(JsonScalar value) override {
    if (depth_ != 2) wrong();
    if (in_metadata_) {
      if (!std::holds_alternative<std::string>(value)) fail("may only hold strings");
    } else if (field_ == kDtype) {
      const auto* text = std::get_if<std::string>(&value);
      if (!text) wrong();
      const auto found = std::ranges::find(kDtypes, *text, &Dtype::name);
      if (found == std::end(kDtypes)) fail("has the unknown dtype ", quote(*text));
      dtype_ = *found;
    } else {
      const auto* number = std::get_if<std::int64_t>(&value);
      if (!in_array_) wrong();
      if (!number || *number < 0) fail(kFields[field_], " must hold integers from 0 to 2^63 - 1");
      if (field_ == kOffsets && items_ < 2) offsets_[items_] = static_cast<std::uint64_t>(*number);
      if (field_ == kShape) {
        if (items_ == kMaxSafetensorsDims) fail("has more than ", kMaxSafetensorsDims, " dimensions");
        tensor_.shape.push_back(*number);
      }
      ++items_;
    }
  }

  std::vector<TensorInfo> finish() && {
    check_names();
    std::ranges::sort(tensors_, {}, [](const TensorInfo& tensor) { return std::pair(tensor.offset, tensor.bytes); });
    std::uint64_t end = 0;
    for (TensorInfo& tensor : tensors_) {
      name_ = tensor.name;
      if (tensor.offset != end) {
        fail("begins at byte ", tensor.offset, " of the data, but the tensor before it ends at ", end,
             "; holes and overlaps are not allowed");
      }
      end += tensor.bytes;  // cannot overflow, because add_tensor() has checked that the tensor lies inside the data
      tensor.offset += data_start_;
    }
    name_.clear();
    if (end != data_bytes_) fail("the tensors end at byte ", end, " of the data, which has ", data_bytes_, " bytes");
    return std::move(tensors_);
  }

 private:
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
  static constexpr std::size_t kDtype = 0, kShape = 1, kOffsets = 2, kNoField = 3;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(ErrorKind::model_format, file_.path(),
            name_.empty()             ? "header"
            : name_ == "__metadata__" ? name_
                                      : "tensor " + name_,
            kLengthBytes, parts...);
  }
  [[noreturn]] void wrong() const { fail("is not described as {\"dtype\": string, \"shape\": integers, \"data_offsets\": [begin, end]}"); }

  void add_tensor() {
    if (name_.empty() || name_.size() > kMaxSafetensorsNameBytes) {
      fail("a tensor has a name of ", name_.size(), " bytes; 1 to ", kMaxSafetensorsNameBytes, " are allowed");
    }
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (!seen_[i]) fail("has no ", kFields[i]);
    }
    const auto [begin, end] = offsets_;
    if (begin > end || end > data_bytes_) {
      fail("lies at bytes ", begin, " to ", end, " of the data, which has ", data_bytes_, " bytes; the file is truncated or damaged");
    }
    std::optional<std::uint64_t> bits = dtype_.bits;
    std::optional<std::int64_t> values = 1;
    for (const std::int64_t extent : tensor_.shape) {
      values = checked_mul(*values, extent);
      bits = checked_mul(*bits, static_cast<std::uint64_t>(extent));
      if (!values || !bits) fail("has a shape of more than 2^63 values");
    }
    if (*bits % 8 != 0 || *bits / 8 != end - begin) {
      fail("has ", end - begin, " bytes; its shape and dtype ", dtype_.name, " ask for ", *bits / 8);
    }
    tensor_.format = dtype_.format;
    tensor_.format_name = dtype_.name;
    tensor_.offset = begin;
    tensor_.bytes = end - begin;
    tensors_.push_back(std::move(tensor_));
  }

  void check_names() {
    std::vector<std::string_view> names;
    names.reserve(tensors_.size());
    for (const TensorInfo& tensor : tensors_) names.push_back(tensor.name);
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
      name_ = *twice;
      fail("comes twice");
    }
  }

  const File& file_;
  std::uint32_t file_index_;
  std::uint64_t data_start_, data_bytes_;

  int depth_ = 0;
  std::string name_;  // name of the tensor that is being read
  bool in_metadata_ = false, metadata_seen_ = false, in_array_ = false;
  std::set<std::string> metadata_keys_;
  std::size_t field_ = kNoField;
  std::array<bool, 3> seen_{};
  std::size_t items_ = 0;  // number of items so far in the array that is being read
  std::array<std::uint64_t, 2> offsets_{};
  Dtype dtype_;
  TensorInfo tensor_;
  std::vector<TensorInfo> tensors_;
};

// Builds the map from the names of tensors to the names of shards, from the events of an index, which looks like this:
// {"metadata": {...}, "weight_map": {"name": "model-00001-of-00002.safetensors", ...}}
class IndexBuilder : public JsonEvents {
 public:
  explicit IndexBuilder(const File& file) : file_(file) {}

  void begin_object() override { begin(false); }
  void begin_array() override { begin(true); }
  void end_object() override { --depth_; }
  void end_array() override { --depth_; }
  void key(std::string name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && std::exchange(map_seen_, true)) fail("weight_map", "comes twice");
    } else if (depth_ == 2 && in_map_) {
      tensor_ = std::move(name);
    }
  }
  void scalar(JsonScalar value) override {
    if (!in_map_) return;
    const auto* shard = std::get_if<std::string>(&value);
    if (depth_ != 2 || !shard) wrong();
    if (!is_bare_name(*shard) || !shard->ends_with(".safetensors")) {
      fail("weight_map." + tensor_, quote(*shard), " is not the name of a .safetensors file in the same folder");
    }
    if (map_.size() == kMaxTensors) fail("weight_map", "has more than ", kMaxTensors, " tensors");
    if (!map_.try_emplace(tensor_, *shard).second) fail("weight_map." + tensor_, "comes twice");
  }

  std::map<std::string, std::string> finish() && {
    if (map_.empty()) fail("weight_map", "is missing or empty");
    return std::move(map_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const std::string& field, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, file_.path(), field, std::nullopt, parts...);
  }
  [[noreturn]] void wrong() const { fail("weight_map", "is not an object of tensor names and file names"); }
  void begin(bool array) {
    if (in_map_ && (array || depth_ >= 2)) wrong();
    ++depth_;
  }

  const File& file_;
  int depth_ = 0;
  bool in_map_ = false, map_seen_ = false;
  std::string tensor_;
  std::map<std::string, std::string> map_;
};

}  // namespace

std::vector<TensorInfo> read_safetensors_header(const File& file, std::uint32_t file_index) {
  ByteReader read(file, kLengthBytes + kMaxSafetensorsHeaderBytes);
  read.enter("header length");
  const auto length = read.take<std::uint64_t>();
  if (length > kMaxSafetensorsHeaderBytes) read.fail(0, "is ", length, " bytes; at most ", kMaxSafetensorsHeaderBytes, " are allowed");
  read.enter("header");
  const auto bytes = read.bytes(length);
  if (bytes.empty() || bytes[0] != '{') read.fail(kLengthBytes, "does not begin with '{'");
  HeaderBuilder builder(file, file_index, kLengthBytes + length);
  parse_json(file.path(), "header", kLengthBytes, bytes, builder);
  return std::move(builder).finish();
}

std::map<std::string, std::string> read_safetensors_index(const File& file) {
  const std::string text = file.read_all(kMaxIndexBytes);
  IndexBuilder builder(file);
  parse_json(file.path(), "", 0, text, builder);
  return std::move(builder).finish();
}

}  // namespace pumice::files
