// Models that are small enough for a test to write: a configuration as transformers or llama.cpp's converter writes it, and the list of all
// tensors.
#pragma once

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cases.h"
#include "core/formats.h"
#include "files/build_files.h"
#include "files/expect_error.h"
#include "files/model_file.h"

namespace pumice::model::tiny {

using Json = nlohmann::ordered_json;
using files::testing::TempFolder;

inline constexpr std::int64_t kVocab = 48, kHidden = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kFfn = 64, kPositions = 64, kTypes = 2,
                              kLabels = 3;

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Format format = Format::F32;
  std::optional<std::uint32_t> gguf_id;  // if set: number of a GGUF format that the engine does not support
  std::string dtype;                     // if not empty: a safetensors dtype that the engine does not support
};

struct Model {
  bool gguf = false;
  Json config;  // contents of config.json, or the keys and values of GGUF
  std::vector<Tensor> tensors;

  Tensor& tensor(const std::string& name) {
    for (Tensor& t : tensors) {
      if (t.name == name) return t;
    }
    throw std::runtime_error("the test's model has no tensor " + name);
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }
};

// Parses a list of tensors, one per line. A line has the tensor's name, where * stands for each layer's number, and the shape as letters:
// V vocabulary, H hidden, Q heads x head_dim, K kv heads x head_dim, D head_dim, F feed-forward, P positions, T types, L labels.
inline std::vector<Tensor> tensors(const std::string& text, std::size_t layers) {
  const auto size = [](char c) -> std::int64_t {
    switch (c) {
      case 'V':
        return kVocab;
      case 'H':
        return kHidden;
      case 'Q':
        return kHeads * kHeadDim;
      case 'K':
        return kKvHeads * kHeadDim;
      case 'D':
        return kHeadDim;
      case 'F':
        return kFfn;
      case 'P':
        return kPositions;
      case 'T':
        return kTypes;
      case 'L':
        return kLabels;
      default:
        throw std::runtime_error(std::string("no size ") + c);
    }
  };
  std::vector<Tensor> list;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Tensor tensor;
    words >> tensor.name;
    for (char c; words >> c;) tensor.shape.push_back(size(c));
    const std::size_t star = tensor.name.find('*');
    for (std::size_t layer = 0; layer < (star == std::string::npos ? 1 : layers); ++layer) {
      Tensor one = tensor;
      if (star != std::string::npos) one.name.replace(star, 1, std::to_string(layer));
      if (!one.name.empty()) list.push_back(one);
    }
  }
  return list;
}

inline constexpr const char* kLlamaTensors =
    "model.embed_tokens.weight VH\nmodel.norm.weight H\nlm_head.weight VH\n"
    "model.layers.*.input_layernorm.weight H\nmodel.layers.*.post_attention_layernorm.weight H\n"
    "model.layers.*.self_attn.q_proj.weight QH\nmodel.layers.*.self_attn.k_proj.weight KH\nmodel.layers.*.self_attn.v_proj.weight KH\n"
    "model.layers.*.self_attn.o_proj.weight HQ\n"
    "model.layers.*.mlp.gate_proj.weight FH\nmodel.layers.*.mlp.up_proj.weight FH\nmodel.layers.*.mlp.down_proj.weight HF\n";
inline constexpr const char* kGemmaTensors =
    "model.embed_tokens.weight VH\nmodel.norm.weight H\n"
    "model.layers.*.input_layernorm.weight H\nmodel.layers.*.post_attention_layernorm.weight H\n"
    "model.layers.*.pre_feedforward_layernorm.weight H\nmodel.layers.*.post_feedforward_layernorm.weight H\n"
    "model.layers.*.self_attn.q_proj.weight QH\nmodel.layers.*.self_attn.k_proj.weight KH\nmodel.layers.*.self_attn.v_proj.weight KH\n"
    "model.layers.*.self_attn.q_norm.weight D\nmodel.layers.*.self_attn.k_norm.weight D\nmodel.layers.*.self_attn.o_proj.weight HQ\n"
    "model.layers.*.mlp.gate_proj.weight FH\nmodel.layers.*.mlp.up_proj.weight FH\nmodel.layers.*.mlp.down_proj.weight HF\n";
inline constexpr const char* kBertTensors =
    "bert.embeddings.word_embeddings.weight VH\nbert.embeddings.position_embeddings.weight PH\n"
    "bert.embeddings.token_type_embeddings.weight TH\nbert.embeddings.LayerNorm.weight H\nbert.embeddings.LayerNorm.bias H\n"
    "bert.encoder.layer.*.attention.self.query.weight QH\nbert.encoder.layer.*.attention.self.query.bias Q\n"
    "bert.encoder.layer.*.attention.self.key.weight QH\nbert.encoder.layer.*.attention.self.key.bias Q\n"
    "bert.encoder.layer.*.attention.self.value.weight QH\nbert.encoder.layer.*.attention.self.value.bias Q\n"
    "bert.encoder.layer.*.attention.output.dense.weight HQ\nbert.encoder.layer.*.attention.output.dense.bias H\n"
    "bert.encoder.layer.*.attention.output.LayerNorm.weight H\nbert.encoder.layer.*.attention.output.LayerNorm.bias H\n"
    "bert.encoder.layer.*.intermediate.dense.weight FH\nbert.encoder.layer.*.intermediate.dense.bias F\n"
    "bert.encoder.layer.*.output.dense.weight HF\nbert.encoder.layer.*.output.dense.bias H\n"
    "bert.encoder.layer.*.output.LayerNorm.weight H\nbert.encoder.layer.*.output.LayerNorm.bias H\n"
    "bert.pooler.dense.weight HH\nbert.pooler.dense.bias H\nclassifier.weight LH\nclassifier.bias L\n";
inline constexpr const char* kLlamaGgufTensors =
    "token_embd.weight VH\noutput_norm.weight H\noutput.weight VH\nblk.*.attn_norm.weight H\nblk.*.ffn_norm.weight H\n"
    "blk.*.attn_q.weight QH\nblk.*.attn_k.weight KH\nblk.*.attn_v.weight KH\nblk.*.attn_output.weight HQ\n"
    "blk.*.ffn_gate.weight FH\nblk.*.ffn_up.weight FH\nblk.*.ffn_down.weight HF\n";
inline constexpr const char* kGemmaGgufTensors =
    "token_embd.weight VH\noutput_norm.weight H\nblk.*.attn_norm.weight H\nblk.*.ffn_norm.weight H\n"
    "blk.*.post_attention_norm.weight H\nblk.*.post_ffw_norm.weight H\nblk.*.attn_q_norm.weight D\nblk.*.attn_k_norm.weight D\n"
    "blk.*.attn_q.weight QH\nblk.*.attn_k.weight KH\nblk.*.attn_v.weight KH\nblk.*.attn_output.weight HQ\n"
    "blk.*.ffn_gate.weight FH\nblk.*.ffn_up.weight FH\nblk.*.ffn_down.weight HF\n";
inline constexpr const char* kBertGgufTensors =
    "token_embd.weight VH\nposition_embd.weight PH\ntoken_types.weight TH\ntoken_embd_norm.weight H\ntoken_embd_norm.bias H\n"
    "blk.*.attn_q.weight QH\nblk.*.attn_q.bias Q\nblk.*.attn_k.weight QH\nblk.*.attn_k.bias Q\nblk.*.attn_v.weight QH\nblk.*.attn_v.bias "
    "Q\n"
    "blk.*.attn_output.weight HQ\nblk.*.attn_output.bias H\nblk.*.attn_output_norm.weight H\nblk.*.attn_output_norm.bias H\n"
    "blk.*.ffn_up.weight FH\nblk.*.ffn_up.bias F\nblk.*.ffn_down.weight HF\nblk.*.ffn_down.bias H\n"
    "blk.*.layer_output_norm.weight H\nblk.*.layer_output_norm.bias H\n";

// Returns a model like Gemma 4 E2B. Layers with and without a window alternate and have different head dims; the last layer never has a
// window. Each layer gets an input of its own besides the hidden row. From layer 2 on, layers attend to the keys and values of layers 0 and
// 1.
inline Model gemma4(std::size_t layers) {
  const std::size_t own = std::min<std::size_t>(layers, 2);
  const std::int64_t inputs = 8, all = inputs * static_cast<std::int64_t>(layers);
  Json types = Json::array();
  Model m{false, {}, {}};
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    m.tensors.push_back({.name = "model." + name, .shape = std::move(shape), .gguf_id = {}, .dtype = {}});
  };
  add("embed_tokens.weight", {kVocab, kHidden}), add("norm.weight", {kHidden});
  add("embed_tokens_per_layer.weight", {kVocab, all}), add("per_layer_model_projection.weight", {all, kHidden});
  add("per_layer_projection_norm.weight", {inputs});
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    const bool full = i % 2 == 1 || i + 1 == layers;
    const std::int64_t dim = full ? 2 * kHeadDim : kHeadDim, ffn = i < own ? kFfn : 2 * kFfn;
    types.push_back(full ? "full_attention" : "sliding_attention");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                             "post_per_layer_input_norm"})
      add(at + norm + ".weight", {kHidden});
    add(at + "layer_scalar", {1});
    add(at + "per_layer_input_gate.weight", {inputs, kHidden}), add(at + "per_layer_projection.weight", {kHidden, inputs});
    add(at + "self_attn.q_proj.weight", {kHeads * dim, kHidden}), add(at + "self_attn.o_proj.weight", {kHidden, kHeads * dim});
    add(at + "self_attn.q_norm.weight", {dim});
    if (i < own) {
      add(at + "self_attn.k_proj.weight", {kKvHeads * dim, kHidden}), add(at + "self_attn.v_proj.weight", {kKvHeads * dim, kHidden});
      add(at + "self_attn.k_norm.weight", {dim});
    }
    add(at + "mlp.gate_proj.weight", {ffn, kHidden}), add(at + "mlp.up_proj.weight", {ffn, kHidden});
    add(at + "mlp.down_proj.weight", {kHidden, ffn});
  }
  m.config = {{"model_type", "gemma4_text"},
              {"hidden_size", kHidden},
              {"num_hidden_layers", layers},
              {"num_attention_heads", kHeads},
              {"num_key_value_heads", kKvHeads},
              {"head_dim", kHeadDim},
              {"global_head_dim", 2 * kHeadDim},
              {"intermediate_size", kFfn},
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"sliding_window", 24},
              {"layer_types", types},
              {"num_kv_shared_layers", layers - own},
              {"use_double_wide_mlp", true},
              {"hidden_size_per_layer_input", inputs},
              {"final_logit_softcapping", 5.0}};
  return m;
}

// Returns the small model of this name: "llama", "mistral", "gemma3", "gemma4" or "bert" (safetensors folders), "llama.gguf", "gemma3.gguf"
// or "bert.gguf" (GGUF files).
inline Model make(const std::string& name, std::size_t layers = 2) {
  if (name == "gemma4") return gemma4(layers);
  const std::string arch = name.substr(0, name.find('.'));
  if (arch != name) {
    const std::string p = arch + ".";
    Json keys = {{"general.architecture", arch},    {p + "block_count", layers},
                 {p + "embedding_length", kHidden}, {p + "attention.head_count", kHeads},
                 {p + "feed_forward_length", kFfn}, {p + "context_length", arch == "bert" ? kPositions : 512}};
    if (arch == "bert") {
      keys.update(Json{{p + "attention.layer_norm_epsilon", 1e-5}, {p + "pooling_type", 2}});
      return {true, keys, tensors(kBertGgufTensors, layers)};
    }
    keys.update(
        Json{{p + "attention.head_count_kv", kKvHeads}, {p + "attention.layer_norm_rms_epsilon", 1e-5}, {p + "rope.freq_base", 5e5}});
    if (arch == "llama") return {true, keys, tensors(kLlamaGgufTensors, layers)};
    keys.update(
        Json{{p + "attention.sliding_window", 24}, {p + "attention.key_length", kHeadDim}, {p + "attention.value_length", kHeadDim}});
    return {true, keys, tensors(kGemmaGgufTensors, layers)};
  }
  Json config = {{"model_type", name},          {"hidden_size", kHidden},
                 {"num_hidden_layers", layers}, {"num_attention_heads", kHeads},
                 {"intermediate_size", kFfn},   {"max_position_embeddings", name == "bert" ? kPositions : 512}};
  if (name == "bert") {
    config.update(Json{{"layer_norm_eps", 1e-5}, {"hidden_act", "gelu"}});
    return {false, config, tensors(kBertTensors, layers)};
  }
  config.update(Json{{"num_key_value_heads", kKvHeads}, {"rms_norm_eps", 1e-5}, {"rope_theta", 5e5}});
  if (name == "llama") return {false, config, tensors(kLlamaTensors, layers)};
  if (name == "mistral") {
    config["sliding_window"] = 24;
    return {false, config, tensors(kLlamaTensors, layers)};
  }
  config.update(Json{{"model_type", "gemma3_text"},
                     {"head_dim", kHeadDim},
                     {"query_pre_attn_scalar", 16},
                     {"sliding_window", 24},
                     {"sliding_window_pattern", 2}});
  return {false, config, tensors(kGemmaTensors, layers)};
}

inline const std::vector<std::string>& every() {
  static const std::vector<std::string> names = {"llama", "mistral", "gemma3", "bert", "llama.gguf", "gemma3.gguf", "bert.gguf"};
  return names;
}

// Returns weights that depend only on the tensor's name. Norm weights are around 1.
inline std::vector<float> values(const Tensor& t) {
  std::uint64_t seed = 1469598103934665603u;  // FNV-1a
  for (const char c : t.name) seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::int64_t count = 1;
  for (const std::int64_t n : t.shape) count *= n;
  if (t.shape.size() != 1)
    return cases::Random(seed).normals(count, 1.0f / std::sqrt(static_cast<float>(t.shape.empty() ? 1 : t.shape.back())));
  const bool around_one = t.name.find("orm.weight") != std::string::npos || t.name.ends_with("layer_scalar");
  return cases::Random(seed).normals(count, 0.1f, around_one ? 1.0f : 0.0f);
}

inline std::string bytes(const Tensor& t) {
  if (t.gguf_id || !t.dtype.empty()) {
    std::int64_t count = 1;
    for (const std::int64_t n : t.shape) count *= n;
    // 66 bytes per 256 values (IQ2_XXS in GGUF), or one byte per value.
    return std::string(static_cast<std::size_t>(t.gguf_id ? count / 256 * 292 : count), '\0');
  }
  const std::vector<float> floats = values(t);
  std::string packed(static_cast<std::size_t>(row_bytes(t.format, static_cast<std::int64_t>(floats.size()))), '\0');
  pack(t.format, floats.data(), static_cast<std::int64_t>(floats.size()), reinterpret_cast<std::uint8_t*>(packed.data()));
  return packed;
}

inline void put(files::testing::GgufBuilder& builder, const std::string& key, const Json& value) {
  if (value.is_boolean()) {
    builder.key(key, 7, static_cast<std::uint8_t>(value.get<bool>()));
  } else if (value.is_number_unsigned() && value.get<std::uint64_t>() >> 63) {
    builder.key(key, 10, value.get<std::uint64_t>());
  } else if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= 0 && number <= 0xffffffff)
      builder.key(key, 4, static_cast<std::uint32_t>(number));
    else
      builder.key(key, 11, number);
  } else if (value.is_number()) {
    builder.key(key, 12, value.get<double>());
  } else if (value.is_string()) {
    builder.text(key, value.get<std::string>());
  } else {
    builder.texts(key, value.get<std::vector<std::string>>());
  }
}

// Writes the model and returns the path that error messages name. For a folder, `config_text` replaces the contents of config.json if
// given.
inline std::string write(const Model& m, const TempFolder& folder, std::optional<std::string> config_text = {}) {
  if (m.gguf) {
    files::testing::GgufBuilder builder;
    for (const auto& [key, value] : m.config.items()) put(builder, key, value);
    for (const Tensor& t : m.tensors) {
      builder.tensor(t.name, {t.shape.rbegin(), t.shape.rend()}, t.gguf_id.value_or(info(t.format).gguf_id), bytes(t));
    }
    return folder.write("model.gguf", builder.build().bytes);
  }
  std::vector<files::testing::SafeTensor> list;
  for (const Tensor& t : m.tensors) list.push_back({t.name, t.dtype.empty() ? std::string(name(t.format)) : t.dtype, t.shape, bytes(t)});
  if (list.empty())
    list.push_back({"none", "F32", {1}, files::testing::floats({0})});  // a file needs a tensor, but tests of configurations list none
  folder.write("config.json", config_text.value_or(m.config.dump()));
  folder.write("model.safetensors", files::testing::safetensors(list).bytes);
  return folder.path();
}

inline std::shared_ptr<const files::ModelFile> open(const Model& m, const TempFolder& folder) {
  return files::ModelFile::open(write(m, folder));
}

}  // namespace pumice::model::tiny
