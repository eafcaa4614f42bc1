#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/checked.h"
#include "core/program_check.h"
#include "files/model_file.h"

namespace pumice::model {
namespace {

constexpr std::int64_t kMaxLayers = 4096, kMaxWidth = 1 << 20, kMaxContext = std::int64_t{1} << 30;

// Reads a hyperparameter under its GGUF key ("block_count", below the architecture's name) or its config.json key.
class Reader {
 public:
  explicit Reader(const files::ModelFile& file) : file_(file), gguf_(file.kind() == files::Kind::gguf) {
    if (gguf_) {
      prefix_ = text("general.architecture") + ".";
    } else if (file.has("text_config.hidden_size")) {
      prefix_ = "text_config.";  // the language half of a multimodal model
    }
  }

  bool gguf() const { return gguf_; }
  std::string key(std::string_view gguf_key, std::string_view json_key) const { return prefix_ + std::string(gguf_ ? gguf_key : json_key); }

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
  bool object(const std::string& where) const {
    const files::Value* held = file_.value(where);
    if (!held) return file_.has(where);
    if (std::holds_alternative<std::monostate>(*held) || files::type_name(*held) == "an empty list") return false;
    throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", files::type_name(*held), "; an object is needed"))
        .in_file(file_.path()).at_field(where);
  }

  std::int64_t in_range(std::int64_t value, std::int64_t low, std::int64_t high, const std::string& where) const {
    if (value < low || value > high) bad(where, value, low, high);
    return value;
  }
  std::int32_t size(std::string_view gguf_key, std::string_view json_key, std::int64_t high,
                    std::optional<std::int64_t> otherwise = {}) const {
    auto value = integer(gguf_key, json_key);
    if (!value) value = otherwise;
    if (!value) missing(key(gguf_key, json_key));
    return static_cast<std::int32_t>(in_range(*value, 1, high, key(gguf_key, json_key)));
  }
  double positive(std::string_view gguf_key, std::string_view json_key, std::optional<double> otherwise = {}) const {
    auto value = number(gguf_key, json_key);
    if (!value) value = otherwise;
    if (!value) missing(key(gguf_key, json_key));
    if (!(*value > 0) || !(*value < 1e30)) bad_number(key(gguf_key, json_key), *value, "a positive number below 1e30");
    return *value;
  }

  [[noreturn]] void missing(const std::string& where) const {
    throw Error(ErrorKind::model_format, str(file_.path(), ": the model's configuration has no ", where))
        .in_file(file_.path())
        .at_field(where);
  }
  template <class T>
  [[noreturn]] void bad(const std::string& where, const T& value, std::int64_t low, std::int64_t high) const {
    throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", value, "; it must lie between ", low, " and ", high))
        .in_file(file_.path()).at_field(where);
  }
  [[noreturn]] void bad_number(const std::string& where, double value, const char* needed) const {
    throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is ", value, "; ", needed, " is needed"))
        .in_file(file_.path()).at_field(where);
  }
  template <class... Parts>
  [[noreturn]] void unsupported(const Parts&... parts) const {
    throw Error(ErrorKind::unsupported_model, str(file_.path(), ": ", parts...)).in_file(file_.path());
  }
  std::string text(const std::string& where) const {
    auto value = file_.string(where);
    if (!value) missing(where);
    return *value;
  }
  const files::ModelFile& file() const { return file_; }

 private:
  // Whether this kind of file has such a key at all. An object where a number belongs has dotted keys and no value: not the same as absent.
  bool asked(const std::string& where) const {
    if (where == prefix_) return false;
    if (!file_.value(where) && file_.has(where)) {
      throw Error(ErrorKind::model_format, str(file_.path(), ": ", where, " is an object; a single value is needed"))
          .in_file(file_.path()).at_field(where);
    }
    return true;
  }

  const files::ModelFile& file_;
  bool gguf_;
  std::string prefix_;
};

const Architecture& row_of(const Reader& read) {
  const std::string name = read.gguf() ? read.text("general.architecture") : read.text("model_type");
  if (const Architecture* row = find_architecture(name, read.gguf())) return *row;
  read.unsupported("architecture \"", name, "\" is not known; this version runs ", known_architectures());
}

Activation activation_of(const Reader& read, Activation otherwise) {
  auto name = read.string("", "hidden_activation");
  if (!name) name = read.string("", "hidden_act");
  if (!name) return otherwise;
  if (*name == "gelu") return Activation::gelu;
  if (*name == "gelu_new" || *name == "gelu_pytorch_tanh" || *name == "gelu_fast") return Activation::gelu_tanh;
  if (*name == "silu" || *name == "swish") return Activation::silu;
  if (*name == "relu") return Activation::relu;
  read.unsupported("activation \"", *name, "\" is not known; this version has gelu, gelu_pytorch_tanh, silu and relu");
}

// ---------------------------------------------------------------- rope
struct RopeScaling {
  std::string type = "default";
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4, beta_fast = 32, beta_slow = 1;
  double original_context = 0;
  double magnitude = 1;   // of YaRN
  bool truncate = true;   // YaRN's ramp begins and ends at whole dimensions
};

// inv_freq[j] = theta^(-2j/dims), in float32 steps as transformers has it, then the scaling of `s`.
RopeTable scaled_rope(const Reader& read, double theta, std::int32_t dims, const RopeScaling& s, bool interleaved) {
  constexpr double kTwoPi = 2 * 3.14159265358979323846;
  RopeTable rope{.inv_freq = std::vector<float>(static_cast<std::size_t>(dims / 2)), .interleaved = interleaved};
  for (std::int32_t j = 0; j < dims / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    rope.inv_freq[static_cast<std::size_t>(j)] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  if (s.type == "default" || s.type == "none") return rope;
  if (s.type == "linear") {  // Chen et al. 2023, position interpolation
    for (float& f : rope.inv_freq) f = static_cast<float>(f / s.factor);
    return rope;
  }
  if (s.type == "llama3") {  // Llama 3.1: long wavelengths are interpolated, short ones kept, a ramp between
    const double longest = s.original_context / s.low_freq_factor, shortest = s.original_context / s.high_freq_factor;
    for (float& f : rope.inv_freq) {
      const double wavelength = kTwoPi / f;
      if (wavelength < shortest) continue;
      const double smooth = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      f = static_cast<float>(wavelength > longest ? f / s.factor : (1 - smooth) * f / s.factor + smooth * f);
    }
    return rope;
  }
  if (s.type == "yarn") {  // Peng et al. 2023
    const auto turns_at = [&](double turns) { return dims * std::log(s.original_context / (turns * kTwoPi)) / (2 * std::log(theta)); };
    const double first = turns_at(s.beta_fast), last = turns_at(s.beta_slow);
    const double low = std::max(s.truncate ? std::floor(first) : first, 0.0);
    const double high = std::max(std::min(s.truncate ? std::ceil(last) : last, dims - 1.0), low + 0.001);
    for (std::int32_t j = 0; j < dims / 2; ++j) {
      const double ramp = std::min(std::max((j - low) / (high - low), 0.0), 1.0);
      float& f = rope.inv_freq[static_cast<std::size_t>(j)];
      f = static_cast<float>(f / s.factor * ramp + f * (1 - ramp));
    }
    rope.magnitude = static_cast<float>(s.magnitude);
    return rope;
  }
  read.unsupported("rope scaling \"", s.type, "\" is not known; this version has linear, llama3 and yarn");
}

// Numbers that are each in range can still give frequencies that are none.
RopeTable make_rope(const Reader& read, double theta, std::int32_t dims, const RopeScaling& s, bool interleaved) {
  RopeTable rope = scaled_rope(read, theta, dims, s, interleaved);
  const auto sound = [](float f) { return f >= 0 && f <= 1e30f; };
  if (!std::ranges::all_of(rope.inv_freq, sound) || !sound(rope.magnitude)) {
    throw Error(ErrorKind::model_format, str(read.file().path(), ": rotary base ", theta, " with scaling \"", s.type, "\" by ", s.factor,
                                             " gives frequencies that are not finite")).in_file(read.file().path()).at_field("rope_theta");
  }
  return rope;
}

// `at` is where transformers keeps a layer type's rope: "rope_parameters", "rope_parameters.sliding_attention" (5.x), "rope_scaling" (4.x).
RopeScaling scaling_at(const Reader& read, const std::string& at, double n_ctx) {
  RopeScaling s;
  const bool gguf = read.gguf();
  auto type = read.string("rope.scaling.type", at + ".rope_type");
  if (!type) type = read.string("", at + ".type");
  s.type = type.value_or(gguf ? "linear" : "default");  // llama.cpp: a factor alone is linear
  s.original_context = read.positive("rope.scaling.original_context_length", at + ".original_max_position_embeddings", n_ctx);
  const bool must_say = !gguf && (s.type == "linear" || s.type == "llama3");
  const double otherwise = gguf ? read.positive("rope.scale_linear", "", 1)  // the key's name before there were types
                                : s.type == "yarn" ? n_ctx / s.original_context : 1;
  s.factor = read.positive("rope.scaling.factor", at + ".factor", must_say ? std::nullopt : std::optional(otherwise));
  s.low_freq_factor = read.positive("", at + ".low_freq_factor", 1);
  s.high_freq_factor = read.positive("", at + ".high_freq_factor", 4);
  s.beta_fast = read.positive("rope.scaling.yarn_beta_fast", at + ".beta_fast", 32);
  s.beta_slow = read.positive("rope.scaling.yarn_beta_slow", at + ".beta_slow", 1);
  s.truncate = gguf || read.file().boolean(read.key("", at + ".truncate")).value_or(true);
  // Peng et al. 2023, section 3.4. A file can give another one (transformers), a factor beside it (llama.cpp), or two parts of it
  // (DeepSeek).
  const auto paper = [&](double scale) { return s.factor > 1 ? 0.1 * scale * std::log(s.factor) + 1 : 1; };
  const double part = read.positive("", at + ".mscale", 1), all = read.positive("", at + ".mscale_all_dim", 1);
  const bool parts = read.has("", at + ".mscale") && read.has("", at + ".mscale_all_dim");
  s.magnitude = parts ? paper(part) / paper(all) : paper(1);
  if (const auto stated = read.number("rope.scaling.attn_factor", at + ".attention_factor")) {
    if (!(std::abs(*stated) < 1e30))
      read.bad_number(read.key("rope.scaling.attn_factor", at + ".attention_factor"), *stated, "a number below 1e30");
    s.magnitude = gguf ? s.magnitude * *stated : *stated;
  }
  if (s.type == "llama3" && !(s.high_freq_factor > s.low_freq_factor)) {
    read.unsupported("rope scaling llama3 needs high_freq_factor (", s.high_freq_factor, ") > low_freq_factor (", s.low_freq_factor, ")");
  }
  return s;
}

void read_ropes(const Reader& read, Config& c) {
  const Architecture& row = *c.architecture;
  const bool interleaved = c.gguf && row.interleaved_rope_in_gguf;
  const auto object = [&](const char* name) { return !c.gguf && read.object(read.key("", name)); };
  const bool parameters = object("rope_parameters"), per_type = parameters && object("rope_parameters.full_attention");
  const std::string full = per_type ? "rope_parameters.full_attention" : parameters ? "rope_parameters" : "rope_scaling";
  object("rope_scaling"), object("rope_parameters.sliding_attention");  // throw when they are there and no objects
  double partial = read.number("", full + ".partial_rotary_factor").value_or(read.number("", "partial_rotary_factor").value_or(1));
  if (!(partial > 0 && partial <= 1)) read.unsupported("partial_rotary_factor is ", partial, "; it must lie between 0 and 1");
  const std::int64_t turned = static_cast<std::int64_t>(c.head_dim * partial) / 2 * 2;
  if (turned == 0) read.unsupported("partial_rotary_factor ", partial, " of head_dim ", c.head_dim, " leaves nothing to rotate");
  const std::int32_t dims = read.size("rope.dimension_count", "", c.head_dim, turned);
  if (dims % 2 != 0) read.unsupported("an odd number of rotary dimensions (", dims, ")");
  const double theta = read.positive("rope.freq_base", full + ".rope_theta", read.positive("", "rope_theta", row.rope_theta));
  c.ropes.push_back(make_rope(read, theta, dims, scaling_at(read, full, static_cast<double>(c.n_ctx)), interleaved));
  if (row.window_rope_theta > 0) {  // layers with a window: their own base, never scaled
    const std::string local = "rope_parameters.sliding_attention";
    const double base =
        read.positive("rope.freq_base_swa", local + ".rope_theta", read.positive("", "rope_local_base_freq", row.window_rope_theta));
    c.ropes.push_back(
        make_rope(read, base, dims, per_type ? scaling_at(read, local, static_cast<double>(c.n_ctx)) : RopeScaling{}, interleaved));
  }
}

// ---------------------------------------------------------------- windows
void read_layers(const Reader& read, Config& c) {
  const Architecture& row = *c.architecture;
  const auto count = static_cast<std::size_t>(read.size("block_count", "num_hidden_layers", kMaxLayers));
  c.layers.resize(count);
  std::int64_t window = read.has("attention.sliding_window", "sliding_window")
                            ? read.integer("attention.sliding_window", "sliding_window").value_or(0)
                            : (c.gguf && row.full_every == 0 ? 0 : row.window);
  read.in_range(window, 0, kMaxContext, read.key("attention.sliding_window", "sliding_window"));
  if (window >= c.n_ctx) window = 0;  // sees everything anyway
  std::int64_t full_every = row.full_every;
  if (const auto pattern = read.integer("", "sliding_window_pattern"))
    full_every = read.in_range(*pattern, 1, kMaxLayers, "sliding_window_pattern");
  if (const auto pattern = read.integer("", "_sliding_window_pattern"))
    full_every = read.in_range(*pattern, 1, kMaxLayers, "_sliding_window_pattern");
  const auto types =
      c.gguf ? std::vector<std::string>{} : read.file().strings(read.key("", "layer_types")).value_or(std::vector<std::string>{});
  if (!types.empty() && types.size() != count) read.unsupported("layer_types has ", types.size(), " entries for ", count, " layers");
  for (std::size_t i = 0; i < count; ++i) {
    bool windowed = full_every == 0 || (static_cast<std::int64_t>(i) + 1) % full_every != 0;
    if (!types.empty()) {
      if (types[i] != "sliding_attention" && types[i] != "full_attention") read.unsupported("layer type \"", types[i], "\" is not known");
      windowed = types[i] == "sliding_attention";
    }
    c.layers[i] = {.window = windowed ? static_cast<std::int32_t>(window) : 0, .rope = windowed && row.window_rope_theta > 0 ? 1 : 0};
  }
}

}  // namespace

Config read_config(const files::ModelFile& file) {
  const Reader read(file);
  Config c;
  c.architecture = &row_of(read);
  c.gguf = read.gguf();
  const Architecture& row = *c.architecture;
  if (!c.gguf && (read.object("quantization_config") || read.object(read.key("", "quantization_config")))) {
    read.unsupported("its weights are quantised by ",
                     file.string("quantization_config.quant_method").value_or("a method of another library"),
                     "; pumice reads F32, F16 and BF16 safetensors, and every common GGUF format");
  }
  if (const auto kind = file.kind() == files::Kind::gguf ? std::nullopt : read.string("", "position_embedding_type");
      kind && *kind != "absolute") {
    read.unsupported("position_embedding_type \"", *kind, "\" is not known; this version has absolute");
  }
  if (read.integer("expert_count", "").value_or(0) != 0) read.unsupported("a mixture of experts (expert_count) is not run yet");
  c.hidden_size = read.size("embedding_length", "hidden_size", kMaxWidth);
  const auto silent = [&](std::int64_t value) { return value > 0 && !c.gguf ? std::optional(value) : std::nullopt; };
  c.heads = read.size("attention.head_count", "num_attention_heads", 65536, silent(row.heads));
  const bool says_kv_heads = read.has("attention.head_count_kv", "num_key_value_heads");  // null: as many as heads
  c.kv_heads = read.size("attention.head_count_kv", "num_key_value_heads", 65536,
                         says_kv_heads ? c.heads : silent(row.kv_heads).value_or(c.heads));
  const std::int64_t head_dim = row.head_dim != 0 && !c.gguf ? row.head_dim : std::max(1, c.hidden_size / c.heads);
  c.head_dim = read.size("attention.key_length", "head_dim", kMaxHeadDim, head_dim);
  if (read.size("attention.value_length", "", kMaxHeadDim, c.head_dim) != c.head_dim)
    read.unsupported("heads of keys and of values differ in size");
  if (c.heads % c.kv_heads != 0) read.unsupported(c.heads, " attention heads cannot share ", c.kv_heads, " heads of keys evenly");
  if (c.head_dim % 8 != 0) read.unsupported("head_dim is ", c.head_dim, "; it must be a multiple of 8");
  c.ffn_size = read.size("feed_forward_length", "intermediate_size", kMaxWidth * 4);
  c.n_ctx = read.in_range(read.integer("context_length", "max_position_embeddings").value_or(row.n_ctx), 1, kMaxContext,
                          read.key("context_length", "max_position_embeddings"));
  c.eps = static_cast<float>(row.norm == NormKind::rms ? read.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps", 1e-6)
                                                       : read.positive("attention.layer_norm_epsilon", "layer_norm_eps", 1e-12));
  c.activation = activation_of(read, row.activation);
  c.embedding_scale = row.embedding_scaled ? std::sqrt(static_cast<float>(c.hidden_size)) : 1.0f;
  double pre_attention =
      read.positive("", "query_pre_attn_scalar", row.query_pre_attn_scalar > 0 && !c.gguf ? row.query_pre_attn_scalar : c.head_dim);
  if (c.gguf && row.name == "gemma3" && read.integer("block_count", "").value_or(0) == 62) {
    pre_attention = static_cast<double>(c.hidden_size) / c.heads;  // the 27B alone; its GGUF does not say
  }
  c.attention_scale = static_cast<float>(1 / std::sqrt(pre_attention));
  const double softcap = read.number("attn_logit_softcapping", "attn_logit_softcapping").value_or(0);
  if (!(softcap >= 0 && softcap < 1e30)) {
    read.bad_number(read.key("attn_logit_softcapping", "attn_logit_softcapping"), softcap, "0 (none) or a positive number");
  }
  c.attention_softcap = static_cast<float>(softcap);
  if (read.number("final_logit_softcapping", "final_logit_softcapping").value_or(0) != 0)
    read.unsupported("final_logit_softcapping is not run yet");
  read_layers(read, c);
  if (row.task == Task::generate) read_ropes(read, c);
  if (c.gguf) {  // llama.cpp's enum llama_pooling_type
    if (const auto pooling = read.integer("pooling_type", "")) {
      constexpr std::array kinds = {PoolKind::mean, PoolKind::mean, PoolKind::cls, PoolKind::last};
      if (*pooling >= 1 && *pooling <= 3) c.pooling = kinds[static_cast<std::size_t>(*pooling)];
    }
  }
  return c;
}

namespace {
constexpr std::pair<std::string_view, PoolKind> kPoolings[] = {
    {"mean", PoolKind::mean}, {"cls", PoolKind::cls}, {"last", PoolKind::last},
    {"max", PoolKind::max},   {"mean_sqrt_len", PoolKind::mean_sqrt_len}, {"weighted_mean", PoolKind::weighted_mean},
};
}

PoolKind pooling_from_name(const std::string& name) {
  for (const auto& [known, kind] : kPoolings) {
    if (known == name) return kind;
  }
  fail(ErrorKind::invalid_argument, "pooling=\"", name, "\" is not known; there are mean, cls, last, max, mean_sqrt_len and weighted_mean");
}

std::string_view name(PoolKind kind) {
  for (const auto& [known, pool] : kPoolings) {
    if (pool == kind) return known;
  }
  return "unknown";
}

}  // namespace pumice::model
