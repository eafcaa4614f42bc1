// Reads hyperparameters and checks the range of each. Each has a GGUF key, for example "block_count", and a config.json key. The kind of
// file decides which of the two is used. GGUF keys are given without the architecture's name in front. For convert(), the Reader also notes
// the keys and values that the GGUF file made from a folder gets.
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

// The GGUF key for the name of the architecture. GgufNotes::keys has this key only if the name is not the first of Family::gguf_names. The
// value "" means that llama.cpp has no architecture for the model.
inline constexpr std::string_view kArchitecture = "general.architecture";

// The contents of the GGUF file that convert() makes from a safetensors folder. In `keys`, the keys lack the architecture's name.
// gguf_head() puts this name in front of each key that does not begin with "xielu.".
struct GgufNotes {
  std::map<std::string, files::Value, std::less<>> keys;
  // The tensors of the GGUF file that are not made from tensors of the folder. They are divisors of rope frequencies.
  std::map<std::string, std::vector<float>> tensors;
  // Numbers for a role. llama.cpp's converter multiplies the role's matrix by each number in `weight`, and its bias by each number in
  // `bias`.
  struct Factors {
    std::vector<double> weight, bias;
  };
  std::map<Role, Factors> factors;
};

class Reader {
 public:
  // If `notes` is not null and the file is a folder, the Reader fills `notes` for the GGUF file made from the folder. Functions below that
  // read one value and have both parameters, gguf_key and json_key, note their result under gguf_key. gguf_says() and gguf_lacks() correct
  // these notes where the GGUF file differs.
  explicit Reader(const files::ModelFile& file, GgufNotes* notes = nullptr);
  // Copies `plain`. `names` are the family's own names for keys of config.json.
  Reader(const Reader& plain, std::span<const KeyName> names) : Reader(plain) { names_ = names; }
  // Returns true if the Reader makes notes for a GGUF file. If it does not, do not read keys that only convert() needs, because load()
  // would then fail if such a key had a strange value.
  bool notes() const { return notes_ != nullptr; }
  // Returns a copy that notes nothing.
  Reader quiet() const {
    Reader copy = *this;
    copy.notes_ = nullptr;
    return copy;
  }

  // Notes `value` under `gguf_key`, for values that config.json does not have or has in another form.
  void gguf_says(std::string_view gguf_key, files::Value value) const {
    if (notes_) notes_->keys.insert_or_assign(std::string(gguf_key), std::move(value));
  }
  // Notes one number per layer under `gguf_key`. If all layers have the same number, notes just this number and no list.
  void gguf_says_by_layer(std::string_view gguf_key, const std::vector<std::int64_t>& values) const;
  // Notes a tensor of the GGUF file.
  void gguf_has(const std::string& name, std::vector<float> values) const {
    if (notes_) notes_->tensors.insert_or_assign(name, std::move(values));
  }
  // Notes that llama.cpp's converter multiplies the matrix and the bias of a role by these numbers.
  void gguf_multiplies(Role role, std::vector<double> weight, std::vector<double> bias = {}) const {
    if (notes_) notes_->factors.insert_or_assign(role, GgufNotes::Factors{std::move(weight), std::move(bias)});
  }
  // Takes these keys out of what convert() will write (notes_), because llama.cpp's converter never writes them for this model.
  void gguf_lacks(std::initializer_list<std::string_view> gguf_keys) const;

  bool gguf() const { return gguf_; }
  std::string key(std::string_view gguf_key, std::string_view json_key) const;
  // Returns the family's own name for a key of config.json. Unlike key(), it never returns the usual name if the family has its own.
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
  // Returns true if the file has the key, even if its value is null. A null and an absent key may mean different things (Mistral's
  // sliding_window).
  bool has(std::string_view gguf_key, std::string_view json_key) const { return file_.has(key(gguf_key, json_key)); }
  // Returns true if config.json has an object at this key that is neither null nor empty. Throws if the value is not an object.
  bool object(const std::string& where) const;
  // Returns true if config.json has an empty object at this key. An empty object may mean something else than an absent key.
  bool empty_object(const std::string& where) const;

  bool flag(std::string_view gguf_key, std::string_view json_key, bool otherwise) const;
  // Returns true if all layers must have a bias. In a folder, config.json's key decides. In a GGUF file, the layers must have a bias if the
  // file has `gguf_tensor`, the bias of the first layer.
  bool biases(std::string_view gguf_tensor, std::string_view json_key, bool otherwise) const {
    return gguf_ ? file_.find(gguf_tensor) != nullptr : flag("", json_key, otherwise);
  }
  // Returns one number per layer. The value in the file is a list, or one number for all layers. Returns an empty vector if the file has no
  // such key.
  std::vector<std::int64_t> per_layer(std::string_view gguf_key, std::string_view json_key, std::size_t count, std::int64_t low,
                                      std::int64_t high) const;

  std::int64_t in_range(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& where) const {
    if (value < low || value > high) bad(where, value, low, high);
    return value;
  }
  std::int32_t size(std::string_view gguf_key, std::string_view json_key, std::int64_t high,
                    std::optional<std::int64_t> otherwise = {}) const;
  // Does what size() does, for a number that GGUF files must have. config.json may lack it if `otherwise` is not 0.
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
  // Returns false if `where`, the result of key(), is only the prefix. The family then has no key for this setting in this kind of file.
  bool asked(const std::string& where) const { return where != prefix_; }

  const files::ModelFile& file_;
  GgufNotes* notes_;  // null: the Reader notes nothing
  bool gguf_;
  std::string prefix_;
  std::span<const KeyName> names_;
};

// Returns the activation called `name`. `where` is the configuration key whose value is `name`, for error messages.
Activation activation_named(const Reader& read, const std::string& where, const std::string& name);
// Returns the activation that config.json has under the family's own name for hidden_act, or `otherwise` if that key is absent. If the
// family has a name of its own, the key hidden_act is ignored, as in transformers.
Activation read_activation(const Reader& read, Activation otherwise);

}  // namespace pumice::model
