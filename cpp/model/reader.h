// Reads hyperparameters by their GGUF key ("block_count", without the name of the architecture before it) or by their config.json key, and
// checks the range of each. For convert(), it also notes what the GGUF file of a folder says under these keys.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "files/model_file.h"
#include "model/family.h"

namespace pumice::model {

inline constexpr std::int64_t kMaxLayers = 4096, kMaxWidth = 1 << 20, kMaxHeads = 65536, kMaxContext = std::int64_t{1} << 30;

// The key of a model's name in GGUF files. It is noted where this is not the first of Family::gguf_names; "" means that llama.cpp has no
// architecture for the model.
inline constexpr std::string_view kArchitecture = "general.architecture";

// What the GGUF file of a folder says about the model. Keys stand without the name of the architecture, which all of them have in front but
// kArchitecture and those that begin with "xielu.".
struct GgufNotes {
  std::map<std::string, files::Value, std::less<>> keys;
  std::map<std::string, std::vector<float>> tensors;  // that come from no tensor of the folder: divisors of rope frequencies
  // Numbers by which llama.cpp's converter multiplies the matrix and the bias of a role, one after another.
  struct Factors {
    std::vector<double> weight, bias;
  };
  std::map<Role, Factors> factors;
};

class Reader {
 public:
  // `notes` may be null. If it is not, and the file is a folder, the Reader notes there what the folder's GGUF file says: for each pair of
  // a GGUF key and a config.json key that a function below is asked for, what config.json has, or the default where the function gets one.
  // What does not follow from that, gguf_says() and gguf_lacks() add and take away.
  explicit Reader(const files::ModelFile& file, GgufNotes* notes = nullptr);
  // Copies `plain` for a family whose config.json has other names for some keys.
  Reader(const Reader& plain, std::span<const KeyName> names) : Reader(plain) { names_ = names; }
  bool notes() const { return notes_ != nullptr; }
  // Returns a copy that notes nothing.
  Reader quiet() const {
    Reader copy = *this;
    copy.notes_ = nullptr;
    return copy;
  }

  // Notes a value that config.json does not have in this form.
  void gguf_says(std::string_view gguf_key, files::Value value) const {
    if (notes_) notes_->keys.insert_or_assign(std::string(gguf_key), std::move(value));
  }
  // The same for the number of a layer, or for a list with one number per layer if these differ.
  void gguf_says_by_layer(std::string_view gguf_key, const std::vector<std::int64_t>& values) const;
  // The same for a tensor.
  void gguf_has(const std::string& name, std::vector<float> values) const {
    if (notes_) notes_->tensors.insert_or_assign(name, std::move(values));
  }
  // Notes that llama.cpp's converter multiplies the matrix and the bias of a role by these numbers.
  void gguf_multiplies(Role role, std::vector<double> weight, std::vector<double> bias = {}) const {
    if (notes_) notes_->factors.insert_or_assign(role, GgufNotes::Factors{std::move(weight), std::move(bias)});
  }
  // Notes that llama.cpp's converter writes none of these keys, whatever config.json has.
  void gguf_lacks(std::initializer_list<std::string_view> gguf_keys) const;

  bool gguf() const { return gguf_; }
  std::string key(std::string_view gguf_key, std::string_view json_key) const;
  // Returns the family's own name for a key of config.json. Unlike key(), it does not fall back to the usual name.
  std::string_view own_name(std::string_view json_key) const;

  std::optional<std::int64_t> integer(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return noted(gguf_key, json_key, asked(where) ? file_.integer(where) : std::nullopt);
  }
  std::optional<double> number(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return noted(gguf_key, json_key, asked(where) ? file_.number(where) : std::nullopt);
  }
  std::optional<std::string> string(std::string_view gguf_key, std::string_view json_key) const {
    const std::string where = key(gguf_key, json_key);
    return noted(gguf_key, json_key, asked(where) ? file_.string(where) : std::nullopt);
  }
  // Returns whether the file has the key, even if its value is null. A null and an absent key may mean different things (Mistral's
  // sliding_window).
  bool has(std::string_view gguf_key, std::string_view json_key) const { return file_.has(key(gguf_key, json_key)); }
  // Returns whether config.json has an object at this key that is neither null nor empty. Throws if the value is not an object.
  bool object(const std::string& where) const;
  // Returns whether config.json has an object without members at this key, which may mean something else than an absent key.
  bool empty_object(const std::string& where) const;

  bool flag(std::string_view gguf_key, std::string_view json_key, bool otherwise) const;
  // Returns whether all layers must have a bias. In config.json, a key says so. In GGUF, they must if the file has the tensor `gguf_tensor`
  // of the first layer.
  bool biases(std::string_view gguf_tensor, std::string_view json_key, bool otherwise) const {
    return gguf_ ? file_.find(gguf_tensor) != nullptr : flag("", json_key, otherwise);
  }
  // Returns one number per layer. The file has a list, or one number for all layers. Returns an empty vector if the file has no such key.
  std::vector<std::int64_t> per_layer(std::string_view gguf_key, std::string_view json_key, std::size_t count, std::int64_t low,
                                      std::int64_t high) const;

  std::int64_t in_range(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& where) const {
    if (value < low || value > high) bad(where, value, low, high);
    return value;
  }
  std::int32_t size(std::string_view gguf_key, std::string_view json_key, std::int64_t high,
                    std::optional<std::int64_t> otherwise = {}) const;
  // The same for a number that GGUF files must have, and that config.json may lack if `otherwise` is not 0.
  std::int32_t size_in_gguf(std::string_view gguf_key, std::string_view json_key, std::int64_t high, std::int32_t otherwise) const {
    return size(gguf_key, json_key, high, gguf_ || otherwise == 0 ? std::nullopt : std::optional<std::int64_t>(otherwise));
  }
  double positive(std::string_view gguf_key, std::string_view json_key, std::optional<double> otherwise = {}) const;

  [[noreturn]] void missing(const std::string& where) const;
  template <class T>
  [[noreturn]] void bad(const std::string& where, const T& value, std::int64_t low, std::int64_t high) const {
    bad_value(where, TextPart(value), low, high);
  }
  [[noreturn]] void bad_number(const std::string& where, double value, const char* needed) const;
  template <class... Parts>
  [[noreturn]] void unsupported(const Parts&... parts) const {
    unsupported_with({TextPart(parts)...});
  }
  std::string text(const std::string& where) const;
  const files::ModelFile& file() const { return file_; }

 private:
  [[noreturn]] void bad_value(const std::string& where, TextPart value, std::int64_t low, std::int64_t high) const;
  [[noreturn]] void unsupported_with(std::initializer_list<TextPart> parts) const;
  template <class T>
  std::optional<T> noted(std::string_view gguf_key, std::string_view json_key, std::optional<T> value) const {
    if (value && !gguf_key.empty() && !json_key.empty()) gguf_says(gguf_key, *value);
    return value;
  }
  bool asked(const std::string& where) const { return where != prefix_; }  // false if this kind of file has no such key (it is empty)

  const files::ModelFile& file_;
  GgufNotes* notes_;  // null: nothing is noted
  bool gguf_;
  std::string prefix_;
  std::span<const KeyName> names_;
};

// Returns the activation called `name`. `where` is the key of `name`, for error messages.
Activation activation_named(const Reader& read, const std::string& where, const std::string& name);
// Returns the activation that config.json gives under the family's name for hidden_act, or `otherwise` if it has no such key. hidden_act
// itself is not read if the family has a name of its own, because transformers ignores it, too.
Activation read_activation(const Reader& read, Activation otherwise);

}  // namespace pumice::model
