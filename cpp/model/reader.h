// Reads hyperparameters under their GGUF key ("block_count", below the architecture's name) or their config.json key, with a range for
// each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "files/model_file.h"
#include "model/family.h"

namespace pumice::model {

inline constexpr std::int64_t kMaxLayers = 4096, kMaxWidth = 1 << 20, kMaxHeads = 65536, kMaxContext = std::int64_t{1} << 30;

class Reader {
 public:
  explicit Reader(const files::ModelFile& file);
  // The same for a family whose config.json has other names for some keys.
  Reader(const Reader& plain, std::span<const KeyName> names)
      : file_(plain.file_), gguf_(plain.gguf_), prefix_(plain.prefix_), names_(names) {}

  bool gguf() const { return gguf_; }
  std::string key(std::string_view gguf_key, std::string_view json_key) const;

  std::optional<std::int64_t> integer(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return asked(where) ? file_.integer(where) : std::nullopt;
  }
  std::optional<double> number(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return asked(where) ? file_.number(where) : std::nullopt;
  }
  std::optional<std::string> string(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return asked(where) ? file_.string(where) : std::nullopt;
  }
  // Present and null is not the same as absent (Mistral's sliding_window).
  bool has(std::string_view gguf_key, std::string_view json_key) const { return file_.has(key(gguf_key, json_key)); }
  // A nested object of config.json: absent, null or empty counts as none.
  bool object(const std::string& where) const;

  bool flag(std::string_view gguf_key, std::string_view json_key, bool otherwise) const;
  // Must layers have a bias? config.json has a switch; in GGUF all layers must have it where the first one has.
  bool biases(std::string_view gguf_tensor, std::string_view json_key, bool otherwise) const {
    return gguf_ ? file_.find(gguf_tensor) != nullptr : flag("", json_key, otherwise);
  }
  // A number for each of `count` layers: one for all, or a list of them. Empty where the file has no such key.
  std::vector<std::int64_t> per_layer(std::string_view gguf_key, std::string_view json_key, std::size_t count, std::int64_t low,
                                      std::int64_t high) const;

  std::int64_t in_range(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& where) const {
    if (value < low || value > high) bad(where, value, low, high);
    return value;
  }
  std::int32_t size(std::string_view gguf_key, std::string_view json_key, std::int64_t high,
                    std::optional<std::int64_t> otherwise = {}) const;
  double positive(std::string_view gguf_key, std::string_view json_key, std::optional<double> otherwise = {}) const;

  [[noreturn]] void missing(const std::string& where) const;
  template <class T>
  [[noreturn]] void bad(const std::string& where, const T& value, std::int64_t low, std::int64_t high) const {
    throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", value, "; it must lie between ", low, " and ", high))
        .in_file(file_.path())
        .at_field(where);
  }
  [[noreturn]] void bad_number(const std::string& where, double value, const char* needed) const;
  template <class... Parts>
  [[noreturn]] void unsupported(const Parts&... parts) const {
    throw Error(ErrorKind::unsupported_model, str(file_.path(), ": ", parts...)).in_file(file_.path());
  }
  std::string text(const std::string& where) const;
  const files::ModelFile& file() const { return file_; }

 private:
  // Whether this kind of file has such a key at all. An object where a number belongs has dotted keys and no value: not the same as absent.
  bool asked(const std::string& where) const;

  const files::ModelFile& file_;
  bool gguf_;
  std::string prefix_;
  std::span<const KeyName> names_;
};

// The activation of a name. `where`: the key that has it.
Activation activation_named(const Reader& read, const std::string& where, const std::string& name);
// The activation that config.json names, under any of the keys that say it.
Activation read_activation(const Reader& read, Activation otherwise);

}  // namespace pumice::model
