#include "files/gguf.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "files/byte_reader.h"
#include "files/gguf_formats.h"
#include "files/limits.h"

namespace pumice::files {
namespace {

enum class Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// The smallest number of bytes in a metadata entry: length of the key, one character, type, a value of one byte.
constexpr std::uint64_t kLeastKey = 8 + 1 + 4 + 1;
// The smallest number of bytes in a tensor entry: length of the name, one character, number of dimensions, one dimension, format, offset.
constexpr std::uint64_t kLeastTensor = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::uint64_t kNumbersAtOnce = 16'384;
constexpr std::string_view kAlignmentKey = "general.alignment";

class Parser {
 public:
  Parser(const File& file, std::uint32_t file_index) : file_(file), read_(file, kMaxGgufHeaderBytes), file_index_(file_index) {}

  GgufHeader run() {
    read_version();
    read_.enter("tensor_count");
    const auto tensors = count(kMaxTensors);
    read_.enter("metadata_kv_count");
    const auto keys = count(kMaxKeys);
    read_.expect(keys, kLeastKey, "metadata entries");
    for (std::uint64_t i = 0; i < keys; ++i) read_entry(i);
    read_alignment();
    read_.enter("tensor_count");
    read_.expect(tensors, kLeastTensor, "tensors");
    header_.tensors.reserve(tensors);
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor(i);
    widen_q2_0();
    place_tensors();
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      if (formats_[i] && formats_[i]->as) header_.tensors[i] = expanded(std::move(header_.tensors[i]), *formats_[i]);
    }
    return std::move(header_);
  }

 private:
  void read_version() {
    read_.enter("magic");
    const auto magic = read_.bytes(4);
    if (magic != "GGUF") read_.fail(0, "is not 'GGUF'");
    read_.enter("version");
    header_.version = read_.take<std::uint32_t>();
    if (header_.version == 2 || header_.version == 3) return;
    const auto refuse = [&](const auto&... why) { fail_at(ErrorKind::unsupported_model, file_.path(), "version", 4, why...); };
    if (header_.version == 1) refuse("GGUF version 1 (of August 2023) is not read; convert the model again, to version 3");
    if (header_.version << 16 == 0 && header_.version != 0) {
      refuse("the file is big-endian; convert it with gguf_convert_endian.py of the gguf package");
    }
    read_.fail(4, "is ", header_.version, "; versions 2 and 3 are read");
  }

  std::uint64_t count(std::uint64_t most) {
    const std::uint64_t at = read_.position();
    const auto n = read_.take<std::uint64_t>();
    if (n > most) read_.fail(at, "is ", n, "; at most ", most, " are allowed");
    return n;
  }

  // Reads a string. The result is valid until the next read.
  std::string_view string(std::uint64_t most) {
    const std::uint64_t at = read_.position();
    const auto length = read_.take<std::uint64_t>();
    if (length > most) read_.fail(at, "has a string of ", length, " bytes; at most ", most, " are allowed");
    return read_.bytes(length);
  }

  // Reads a key or the name of a tensor. Throws if it is empty or not UTF-8.
  std::string identifier(std::uint64_t most, const char* what) {
    const std::uint64_t at = read_.position();
    const std::string_view text = string(most);
    if (text.empty()) read_.fail(at, "has an empty ", what);
    if (!valid_utf8(text)) read_.fail(at, "has a ", what, " that is not UTF-8: ", quote(text));
    return std::string(text);
  }

  void read_entry(std::uint64_t i) {
    read_.enter(str("metadata entry ", i));
    const std::uint64_t at = read_.position();
    std::string key = identifier(kMaxKeyBytes, "key");
    read_.enter(key);
    const Type type = read_type();
    if (key == kAlignmentKey) alignment_at_ = read_.position();
    Value value = read_value(type);
    if (!header_.entries.try_emplace(std::move(key), std::move(value)).second) read_.fail(at, "this key comes twice");
  }

  Type read_type() {
    const std::uint64_t at = read_.position();
    const auto type = read_.take<std::uint32_t>();
    if (type > static_cast<std::uint32_t>(Type::f64)) read_.fail(at, "has the unknown value type ", type);
    return static_cast<Type>(type);
  }

  Value read_value(Type type) {
    switch (type) {
      case Type::u8:
        return std::int64_t{read_.take<std::uint8_t>()};
      case Type::i8:
        return std::int64_t{read_.take<std::int8_t>()};
      case Type::u16:
        return std::int64_t{read_.take<std::uint16_t>()};
      case Type::i16:
        return std::int64_t{read_.take<std::int16_t>()};
      case Type::u32:
        return std::int64_t{read_.take<std::uint32_t>()};
      case Type::i32:
        return std::int64_t{read_.take<std::int32_t>()};
      case Type::i64:
        return read_.take<std::int64_t>();
      case Type::f32:
        return double{read_.take<float>()};
      case Type::f64:
        return read_.take<double>();
      case Type::boolean:
        return read_boolean();
      case Type::string:
        return std::string(string(kMaxStringBytes));
      case Type::array:
        return read_array();
      case Type::u64: {
        const auto number = read_.take<std::uint64_t>();
        if (const auto fits = checked_narrow<std::int64_t>(number)) return *fits;
        return number;
      }
    }
    return {};  // is not reached, because each type has a case above
  }

  bool read_boolean() {
    const std::uint64_t at = read_.position();
    const auto byte = read_.take<std::uint8_t>();
    if (byte > 1) read_.fail(at, "is a boolean of value ", int{byte}, "; 0 or 1 is needed");
    return byte == 1;
  }

  Value read_array() {
    const std::uint64_t at = read_.position();
    const Type type = read_type();
    if (type == Type::array) read_.fail(at, "is an array of arrays, which no model needs and GGUF readers refuse");
    const std::uint64_t n = count(kMaxArrayElements);
    switch (type) {
      case Type::u8:
        return numbers<std::uint8_t, std::int32_t>(n);
      case Type::i8:
        return numbers<std::int8_t, std::int32_t>(n);
      case Type::u16:
        return numbers<std::uint16_t, std::int32_t>(n);
      case Type::i16:
        return numbers<std::int16_t, std::int32_t>(n);
      case Type::i32:
        return numbers<std::int32_t, std::int32_t>(n);
      case Type::u32:
        return numbers<std::uint32_t, std::int64_t>(n);
      case Type::i64:
        return numbers<std::int64_t, std::int64_t>(n);
      case Type::u64:
        return numbers<std::uint64_t, std::int64_t>(n);
      case Type::f32:
        return numbers<float, float>(n);
      case Type::f64:
        return numbers<double, double>(n);
      case Type::boolean: {
        read_.expect(n, 1, "array elements");
        std::vector<bool> values(n);
        for (std::uint64_t i = 0; i < n; ++i) values[i] = read_boolean();
        return values;
      }
      case Type::string: {
        read_.expect(n, 8, "strings");
        StringList strings;
        strings.reserve(n);
        for (std::uint64_t i = 0; i < n; ++i) strings.push_back(string(kMaxStringBytes));
        return strings;
      }
      case Type::array:
        break;
    }
    return {};  // is not reached, because each type has a case above
  }

  template <class Stored, class Kept>
  std::vector<Kept> numbers(std::uint64_t n) {
    read_.expect(n, sizeof(Stored), "array elements");
    std::vector<Kept> values;
    values.reserve(n);
    while (values.size() < n) {
      const std::uint64_t at = read_.position();
      const std::uint64_t now = std::min(n - values.size(), kNumbersAtOnce);
      const auto bytes = read_.bytes(now * sizeof(Stored));
      for (std::uint64_t i = 0; i < now; ++i) {
        const auto number = from_little_endian<Stored>(bytes.substr(i * sizeof(Stored), sizeof(Stored)));
        if constexpr (std::is_same_v<Stored, std::uint64_t>) {
          if (!checked_narrow<Kept>(number)) read_.fail(at + i * sizeof(Stored), "has an element of ", number, "; it must be below 2^63");
        }
        values.push_back(static_cast<Kept>(number));
      }
    }
    return values;
  }

  void read_alignment() {
    const auto found = header_.entries.find(kAlignmentKey);
    if (found == header_.entries.end()) return;
    read_.enter(std::string(kAlignmentKey));
    const auto* value = std::get_if<std::int64_t>(&found->second);
    if (!value) read_.fail(alignment_at_, "is ", type_name(found->second), "; an integer is needed");
    if (*value < 1 || *value > static_cast<std::int64_t>(kMaxAlignment) || !std::has_single_bit(static_cast<std::uint64_t>(*value))) {
      read_.fail(alignment_at_, "is ", *value, "; a power of two from 1 to ", kMaxAlignment, " is needed");
    }
    alignment_ = static_cast<std::uint64_t>(*value);
  }

  void read_tensor(std::uint64_t i) {
    read_.enter(str("tensor ", i));
    TensorInfo tensor;
    tensor.file = file_index_;
    tensor.name = identifier(kMaxGgufNameBytes, "name");
    read_.enter("tensor " + tensor.name);

    const std::uint64_t dims_at = read_.position();
    const auto dims = read_.take<std::uint32_t>();
    if (dims < 1 || dims > kMaxGgufDims) read_.fail(dims_at, "has ", dims, " dimensions; 1 to ", kMaxGgufDims, " are allowed");
    std::optional<std::int64_t> values = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const std::uint64_t at = read_.position();
      const auto extent = checked_narrow<std::int64_t>(read_.take<std::uint64_t>());
      if (!extent || *extent == 0) read_.fail(at, "dimension ", d, " is ", extent ? "0" : "above 2^63 - 1");
      values = checked_mul(*values, *extent);
      if (!values) read_.fail(at, "has more than 2^63 - 1 values");
      tensor.shape.insert(tensor.shape.begin(), *extent);
    }

    const std::uint64_t format_at = read_.position();
    const auto [block, block_bytes] = read_format(tensor);
    value_counts_.push_back(*values);
    if (tensor.shape.back() % block != 0) {
      read_.fail(format_at, "has rows of ", tensor.shape.back(), " values; ", tensor.format_name, " needs a multiple of ", block);
    }
    const auto bytes = checked_mul<std::uint64_t>(static_cast<std::uint64_t>(*values / block), static_cast<std::uint64_t>(block_bytes));
    if (!bytes) read_.fail(dims_at, "has more than 2^64 - 1 bytes");
    tensor.bytes = *bytes;

    const std::uint64_t at = read_.position();
    tensor.offset = read_.take<std::uint64_t>();  // counts from the start of the data until place_tensors() adds that start
    if (tensor.offset % alignment_ != 0) read_.fail(at, "its offset ", tensor.offset, " is not a multiple of the alignment ", alignment_);
    header_.tensors.push_back(std::move(tensor));
    offset_at_.push_back(at);
  }

  std::pair<std::int64_t, std::int64_t> read_format(TensorInfo& tensor) {
    const std::uint64_t at = read_.position();
    const auto id = read_.take<std::uint32_t>();
    formats_.push_back(nullptr);
    if (const auto format = format_from_gguf(id)) {
      tensor.format = format;
      tensor.format_name = name(*format);
      return {info(*format).block, info(*format).block_bytes};
    }
    const GgufFormat* format = gguf_format(id);
    if (!format) read_.fail(at, "has the unknown format number ", id, "; the file is damaged, or newer than this version");
    tensor.format_name = format->name;
    formats_.back() = format;
    return {format->block, format->block_bytes};
  }

  // Gives all Q2_0 tensors groups of 128 weights if the file was written with such groups. ggml writes groups of 64 weights, another writer
  // groups of 128, both under the id of Q2_0, so only the tensors' offsets tell them apart. If groups of 128 make every Q2_0 tensor end
  // where the next tensor begins, and groups of 64 do not, all Q2_0 tensors have groups of 128.
  void widen_q2_0() {
    const GgufFormat& wide = wide_q2_0();
    std::vector<std::uint64_t> begins;
    for (const TensorInfo& tensor : header_.tensors) begins.push_back(tensor.offset);
    const auto data = checked_align(read_.position(), alignment_);
    begins.push_back(data && file_.size() > *data ? file_.size() - *data : 0);
    std::ranges::sort(begins);
    bool narrow_fits = true, wide_fits = true;
    const auto each = [&](const auto& use) {
      for (std::size_t i = 0; i < header_.tensors.size(); ++i)
        if (formats_[i] && formats_[i]->id == wide.id) use(header_.tensors[i], value_counts_[i], formats_[i]);
    };
    const auto wide_bytes = [&](std::int64_t values) { return static_cast<std::uint64_t>(values / wide.block * wide.block_bytes); };
    each([&](const TensorInfo& tensor, std::int64_t values, const GgufFormat*) {
      const auto next = std::ranges::upper_bound(begins, tensor.offset);
      const std::uint64_t space = next == begins.end() ? 0 : *next - tensor.offset;
      const auto fills = [&](std::uint64_t bytes) { return bytes <= space && space - bytes < alignment_; };
      narrow_fits = narrow_fits && fills(tensor.bytes);
      wide_fits = wide_fits && tensor.shape.back() % wide.block == 0 && fills(wide_bytes(values));
    });
    if (narrow_fits || !wide_fits) return;
    each([&](TensorInfo& tensor, std::int64_t values, const GgufFormat*& format) {
      format = &wide;
      tensor.bytes = wide_bytes(values);
    });
  }

  // Makes the tensors' offsets relative to the start of the file, and checks them. Holes between tensors are allowed, because some writers
  // align to more than general.alignment, and tools that drop a tensor leave its space. Overlaps are errors, because in some published
  // quantizations each tensor had too few bytes, so that its last rows would be read from the bytes of the next tensor.
  void place_tensors() {
    const auto data = checked_align(read_.position(), alignment_);  // does not overflow, because the header ends far below 2^64
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      TensorInfo& tensor = header_.tensors[i];
      read_.enter("tensor " + tensor.name);
      const auto begin = data ? checked_add(*data, tensor.offset) : std::nullopt;
      const auto end = begin ? checked_add(*begin, tensor.bytes) : std::nullopt;
      if (!end || *end > file_.size()) {
        read_.fail(offset_at_[i], "its ", tensor.bytes, " bytes at offset ", tensor.offset, " of the data end behind the end of the file (",
                   file_.size(), " bytes); the file is truncated or damaged");
      }
      tensor.offset = *begin;
    }
    // The tensor list and the alignment determine where the data begins. If the number of tensors or the alignment were wrong, each tensor
    // would silently get the bytes of another tensor. Both are right if the last tensor ends at the end of the file.
    std::uint64_t end = *data;
    for (const TensorInfo& tensor : header_.tensors) end = std::max(end, tensor.offset + tensor.bytes);
    if (file_.size() > end && file_.size() - end >= alignment_) {
      read_.enter("tensor_count");
      read_.fail(end, "the last tensor ends here, but ", file_.size() - end,
                 " bytes follow; the list of tensors or the alignment is damaged");
    }
    std::vector<std::uint32_t> order(header_.tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, {}, [&](std::uint32_t i) { return header_.tensors[i].offset; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const TensorInfo& before = header_.tensors[order[i - 1]];
      const TensorInfo& after = header_.tensors[order[i]];
      if (before.bytes > after.offset - before.offset) {
        read_.enter("tensor " + after.name);
        read_.fail(after.offset, "shares bytes with tensor ", quote(before.name), ", which ends at byte ", before.offset + before.bytes);
      }
    }
  }

  const File& file_;
  ByteReader read_;
  std::uint32_t file_index_;
  std::uint64_t alignment_ = 32, alignment_at_ = 0;
  std::vector<const GgufFormat*> formats_;  // the format of each tensor; null if it is in core/formats.def
  std::vector<std::int64_t> value_counts_;  // the number of values in each tensor
  std::vector<std::uint64_t> offset_at_;    // the file position of each tensor's offset field, for errors
  GgufHeader header_;
};

}  // namespace

GgufHeader read_gguf_header(const File& file, std::uint32_t file_index) { return Parser(file, file_index).run(); }

}  // namespace pumice::files
