// Falcon-H1 (TII 2025). In each layer, attention and Mamba-2 both read the same row, and both outputs are added to it. The inputs and
// outputs of most matrix products are multiplied by numbers from config.json. Converters to GGUF multiply the matrices by these numbers
// instead.
#include <vector>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/scan_settings.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::falcon_h1 {
namespace {

using enum Role;

constexpr std::string_view kFolded[] = {"Attention::scale",       "Attention::multipliers",   "Recurrent::factors",
                                        "Recurrent::multipliers", "FeedForward::multipliers", "Config::embedding_scale",
                                        "Config::logit_scale"};
constexpr std::string_view kGguf[] = {"falcon-h1"}, kTypes[] = {"falcon_h1"};
constexpr TensorName kOwnNames[] = {
    {ffn_norm, "blk.{}.ffn_norm", "", Fused::no, false, Bare::both},  // llama.cpp's converter leaves out ".weight"
    {ffn_norm, "blk.{}.ffn_norm", ""},
    {ffn_norm, "", "layers.{}.pre_ff_layernorm"},
    {gate, "blk.{}.ffn_gate", "layers.{}.feed_forward.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.feed_forward.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.feed_forward.down_proj"},
    {final_norm, "output_norm", "final_layernorm"},
};
constexpr auto kNames = names::joined(names::kMamba2, kOwnNames);

// Returns `value`, a multiplier from config.json, or throws if it is out of range. Larger multipliers would lead to infinities.
double checked(const Reader& read, const std::string& where, double value) {
  if (!(value > 0 && value < 1e6)) read.bad_number(where, value, "a positive number below 1e6");
  return value;
}

// Returns the multiplier at `key` of config.json, or 1 if the value is null or missing.
double multiplier(const Reader& read, const char* key) { return checked(read, read.key("", key), read.number("", key).value_or(1)); }

// Returns the list of `count` multipliers at `key` of config.json. All are 1 if the value is null or missing.
std::vector<double> multipliers(const Reader& read, const char* key, std::size_t count) {
  const std::string where = read.key("", key);
  const auto said = read.gguf() ? std::nullopt : read.file().number_list(where);
  if (!said) return std::vector<double>(count, 1.0);
  if (said->size() != count) read.unsupported(where, " has ", said->size(), " values; ", count, " are needed");
  for (const double value : *said) checked(read, where, value);
  return *said;
}

void read_multipliers(const Reader& read, Config& c) {
  const double embedding = multiplier(read, "embedding_multiplier"), logits = multiplier(read, "lm_head_multiplier");
  const double in = multiplier(read, "attention_in_multiplier"), out = multiplier(read, "attention_out_multiplier");
  const double ssm_in = multiplier(read, "ssm_in_multiplier"), ssm_out = multiplier(read, "ssm_out_multiplier");
  const std::vector<double> mlp = multipliers(read, "mlp_multipliers", 2), parts = multipliers(read, "ssm_multipliers", 5);
  const double key = multiplier(read, "key_multiplier");
  const auto narrow = [](double value) { return static_cast<float>(value); };
  c.embedding_scale = narrow(embedding);
  c.logit_scale = narrow(logits);
  for (Layer& layer : c.layers) {
    layer.attention().multipliers = {.in = narrow(in), .out = narrow(out)};
    layer.attention().scale *= narrow(key);  // multiplying scores has the same effect as multiplying keys
    layer.beside->multipliers = {.in = narrow(ssm_in), .out = narrow(ssm_out)};
    layer.beside->factors = {
        .q = narrow(parts[3]), .k = narrow(parts[2]), .v = narrow(parts[1]), .gate = narrow(parts[0]), .step = narrow(parts[4])};
    layer.feed_forward().multipliers = {.in = narrow(mlp[0]), .out = narrow(mlp[1])};
  }
  // Records the numbers by which converters to GGUF multiply matrices (first list) and biases (second list). A number that multiplies the
  // input of a matrix is not in the second list.
  read.gguf_multiplies(token_embedding, {embedding});
  read.gguf_multiplies(head, {logits});
  read.gguf_multiplies(q, {in});
  read.gguf_multiplies(k, {key * in}, {key});
  read.gguf_multiplies(v, {in});
  read.gguf_multiplies(attn_out, {out}, {out});
  read.gguf_multiplies(gate, {mlp[0]}, {mlp[0]});
  read.gguf_multiplies(down, {mlp[1]}, {mlp[1]});
  read.gguf_multiplies(scan_out, {ssm_out}, {ssm_out});
  constexpr Role kParts[] = {scan_gate, scan_v, scan_k, scan_q, scan_step};
  for (std::size_t i = 0; i < parts.size(); ++i) read.gguf_multiplies(kParts[i], {ssm_in, parts[i]}, {parts[i]});
}

Recurrent read_mixer(const Reader& read, const Config& c) {
  std::int32_t inner = 0;
  if (!c.gguf) {
    const bool null = read.has("", "mamba_d_ssm") && !read.integer("", "mamba_d_ssm");
    inner =
        null ? c.hidden_size * read.size("", "mamba_expand", kMaxWidth / c.hidden_size, 2) : read.size("", "mamba_d_ssm", kMaxWidth, 1024);
  }
  Recurrent r = read_ssd(read, c, {.heads = 128, .key_heads = 1, .key_dim = 256, .inner = inner});
  r.out_bias = read.flag("", "projectors_bias", false);
  // GGUF files have no keys for the norm. A GGUF file with the norm's tensor has the norm after the gate, as in llama.cpp.
  const bool normalised = c.gguf ? read.file().find("blk.0.ssm_norm.weight") != nullptr : read.flag("", "mamba_rms_norm", false);
  if (!normalised) {
    r.norm.reset();
  } else {
    r.norm->before_gate = read.flag("", "mamba_norm_before_gate", true) && !c.gguf;
  }
  return r;
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 32, .kv_heads = 8, .n_ctx = 8192, .eps = 1e-5});
  const Recurrent mixer = read_mixer(read, c);
  for (Layer& layer : c.layers) layer.beside = mixer;
  read_ropes(read, c, {});
  if (!c.gguf) {
    read_multipliers(read, c);
  } else if (!read.file().find("output.weight")) {
    c.incomplete.push_back(
        "lacks output.weight. The matrix of the embeddings is used in its place, but converters to GGUF multiply that by a number of its "
        "own, "
        "so the order of logits is right and their scale is not: sample with the folder from which the file was converted");
  }
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
}

}  // namespace

const Family falcon_h1{.name = "falcon_h1",
                       .gguf_names = kGguf,
                       .model_types = kTypes,
                       .prefixes = names::kDecoderPrefixes,
                       .names = kNames,
                       .more_names = names::kLlama,
                       .configure = configure,
                       .folded_in_gguf = kFolded};

}  // namespace pumice::model::families_in_files::falcon_h1
