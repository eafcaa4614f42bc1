#include "model/reader.h"

#include <algorithm>

namespace pumice::model {

Reader::Reader(const files::ModelFile& file, GgufNotes* notes)
    : file_(file), notes_(file.kind() == files::Kind::gguf ? nullptr : notes), gguf_(file.kind() == files::Kind::gguf) {
  if (gguf_) {
    prefix_ = text("general.architecture") + ".";
  } else if (file.has("text_config.hidden_size")) {
    prefix_ = "text_config.";  // config.json has the language model of a multimodal model in this object
  }
}

void Reader::gguf_says_by_layer(std::string_view gguf_key, const std::vector<std::int64_t>& values) const {
  if (std::ranges::adjacent_find(values, std::not_equal_to()) != values.end())
    gguf_says(gguf_key, values);
  else
    gguf_says(gguf_key, values.front());
}

void Reader::gguf_lacks(std::initializer_list<std::string_view> gguf_keys) const {
  for (const std::string_view key : gguf_keys)
    if (notes_) notes_->keys.erase(std::string(key));
}

std::string Reader::key(std::string_view gguf_key, std::string_view json_key) const {
  if (gguf_) return prefix_ + std::string(gguf_key);
  const std::string usual = prefix_ + std::string(json_key);
  for (const KeyName& name : names_) {
    if (name.usual != json_key) continue;
    std::string here = prefix_ + std::string(name.here);
    if (file_.has(here) || !file_.has(usual)) return here;  // if both keys are missing, errors name `here`
  }
  return usual;
}

std::string_view Reader::own_name(std::string_view json_key) const {
  for (const KeyName& name : names_) {
    if (name.usual == json_key) return name.here;
  }
  return json_key;
}

bool Reader::flag(std::string_view gguf_key, std::string_view json_key, bool otherwise) const {
  const std::string where = key(gguf_key, json_key);
  return *noted(gguf_key, json_key, std::optional(asked(where) ? file_.boolean(where).value_or(otherwise) : otherwise));
}

std::vector<std::int64_t> Reader::per_layer(std::string_view gguf_key, std::string_view json_key, std::size_t count, std::int64_t low,
                                            std::int64_t high) const {
  const std::string where = key(gguf_key, json_key);
  const auto list = asked(where) ? file_.integer_list(where) : std::nullopt;
  if (!list) return {};
  const bool one_for_all = std::holds_alternative<std::int64_t>(*file_.value(where));
  if (!one_for_all && list->size() != count)
    unsupported(where, " has ", list->size(), " entries for ", count, " layers; one number, or one for each layer, is needed");
  for (const std::int64_t value : *list) in_range(value, low, high, where);
  return one_for_all ? std::vector<std::int64_t>(count, list->front()) : *list;
}

bool Reader::object(const std::string& where) const {
  const files::Value* held = file_.value(where);
  if (!held) return file_.has(where);
  if (std::holds_alternative<std::monostate>(*held) || empty_object(where)) return false;
  throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", files::type_name(*held), "; an object is needed"))
      .in_file(file_.path())
      .at_field(where);
}

bool Reader::empty_object(const std::string& where) const {
  const files::Value* held = file_.value(where);
  const auto* nested = held ? std::get_if<files::Nested>(held) : nullptr;
  return nested && !nested->list;
}

std::int32_t Reader::size(std::string_view gguf_key, std::string_view json_key, std::int64_t high,
                          std::optional<std::int64_t> otherwise) const {
  auto value = integer(gguf_key, json_key);
  if (!value) value = otherwise;
  if (!value) missing(key(gguf_key, json_key));
  return static_cast<std::int32_t>(*noted(gguf_key, json_key, std::optional(in_range(*value, 1, high, key(gguf_key, json_key)))));
}

double Reader::positive(std::string_view gguf_key, std::string_view json_key, std::optional<double> otherwise) const {
  auto value = number(gguf_key, json_key);
  if (!value) value = otherwise;
  if (!value) missing(key(gguf_key, json_key));
  if (!(*value > 0) || !(*value < 1e30)) bad_number(key(gguf_key, json_key), *value, "a positive number below 1e30");
  return *noted(gguf_key, json_key, value);
}

void Reader::missing(const std::string& where) const {
  std::string also;
  for (const KeyName& name : names_) {
    if (!gguf_ && where == prefix_ + std::string(name.here)) also = str(" (or ", name.usual, ")");
  }
  throw Error(ErrorKind::model_format, str(file_.path(), ": the model's configuration has no ", where, also))
      .in_file(file_.path())
      .at_field(where);
}

void Reader::bad_value(const std::string& where, TextPart value, std::int64_t low, std::int64_t high) const {
  throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", value, "; it must lie between ", low, " and ", high))
      .in_file(file_.path())
      .at_field(where);
}

void Reader::unsupported_with(std::initializer_list<TextPart> parts) const {
  throw Error(ErrorKind::unsupported_model, str(file_.path(), ": ", joined(parts))).in_file(file_.path());
}

void Reader::bad_number(const std::string& where, double value, const char* needed) const {
  throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", value, "; ", needed, " is needed"))
      .in_file(file_.path())
      .at_field(where);
}

std::string Reader::text(const std::string& where) const {
  auto value = file_.string(where);
  if (!value) missing(where);
  return *value;
}

Activation read_activation(const Reader& read, Activation otherwise) {
  const std::string_view key = read.own_name("hidden_act");
  const auto name = read.string("", key);
  return name ? activation_named(read, read.key("", key), *name) : otherwise;
}

Activation activation_named(const Reader& read, const std::string& where, const std::string& name) {
  if (name == "gelu" || name == "gelu_python") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "silu" || name == "swish" || name == "swiglu" || name == "SwiGLU") return Activation::silu;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::relu2;
  if (name == "tanh") return Activation::tanh;
  if (name == "sigmoid") return Activation::sigmoid;
  if (name == "quick_gelu") return Activation::quick_gelu;
  if (name == "xielu") return Activation::xielu;
  read.unsupported(where, ": activation \"", name, "\" is not known; this version has gelu, gelu_pytorch_tanh, silu, relu, relu2, tanh, ",
                   "sigmoid, quick_gelu and xielu");
}

}  // namespace pumice::model
