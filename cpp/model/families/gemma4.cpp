// The language models of Gemma 4 (2026) differ from Gemma 3 as follows. Safetensors files store norm weights as they are. Scores are not
// scaled, and values are normalised, too. Layers without a window have another head_dim, a rope that rotates a quarter of each head, and in
// the larger models no matrix for values. Each layer multiplies its rows by a learned number. In E2B and E4B, the last layers compute no
// keys and values; read_shared_layers() says which ones they attend to. E2B and E4B also have LayerInputs. The layers of the 26B have
// experts beside their network. The language model of EmbeddingGemma 2 (2026) has Gemma 4's layers with bidirectional attention,
// LayerInputs without a table, and a matrix that projects each token's row after the final norm.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "core/program_check.h"
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"
#include "model/tensor_errors.h"

namespace pumice::model::families_in_files::gemma4 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"gemma4"};
constexpr std::string_view kTypes[] = {"gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"};
constexpr KeyName kKeys[] = {{"hidden_act", "hidden_activation"}};
constexpr TensorName kNames[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.pre_feedforward_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
    {inputs_embedding, "per_layer_token_embd", "embed_tokens_per_layer"},
    {inputs_projection, "per_layer_model_proj", "per_layer_model_projection"},
    {inputs_norm, "per_layer_proj_norm", "per_layer_projection_norm"},
    {input_gate, "blk.{}.inp_gate", "layers.{}.per_layer_input_gate"},
    {input_out, "blk.{}.proj", "layers.{}.per_layer_projection"},
    {input_norm, "blk.{}.post_norm", "layers.{}.post_per_layer_input_norm"},
    {layer_scale, "blk.{}.layer_output_scale", "layers.{}.layer_scalar", Fused::no, false, Bare::safetensors},
};

constexpr TensorName kExpertNames[] = {
    {router, "blk.{}.ffn_gate_inp", "layers.{}.router.proj"},
    {router_norm, "blk.{}.ffn_gate_inp.scale", "layers.{}.router.scale", Fused::no, false, Bare::both},
    {router_scales, "blk.{}.ffn_down_exps.scale", "layers.{}.router.per_expert_scale", Fused::no, false, Bare::both},
    {expert_norm, "blk.{}.pre_ffw_norm_2", "layers.{}.pre_feedforward_layernorm_2"},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.experts.gate_up_proj", Fused::expert_gate_up, false, Bare::safetensors},
    {expert_gate, "blk.{}.ffn_gate_exps", ""},
    {expert_up, "blk.{}.ffn_up_exps", ""},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.experts.down_proj", Fused::no, false, Bare::safetensors},
    {shared_gate, "blk.{}.ffn_gate", "layers.{}.mlp.gate_proj"},
    {shared_up, "blk.{}.ffn_up", "layers.{}.mlp.up_proj"},
    {shared_down, "blk.{}.ffn_down", "layers.{}.mlp.down_proj"},
    {shared_branch_norm, "blk.{}.post_ffw_norm_1", "layers.{}.post_feedforward_layernorm_1"},
    {expert_branch_norm, "blk.{}.post_ffw_norm_2", "layers.{}.post_feedforward_layernorm_2"},
};
constexpr auto kAllNames = names::joined(kNames, kExpertNames);

// If the model has experts, makes the networks of all layers mixtures. The layer's own network becomes the mixture's shared expert.
void read_experts(const Reader& read, Config& c) {
  const bool has = c.gguf ? read.integer("expert_count", "").value_or(0) > 0 : read.flag("", "enable_moe_block", false);
  if (!has) return;
  if (!c.gguf) {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"})
      if (!read.integer("", key)) read.missing(read.key("", key));
  }
  Mixture mixture = read_mixture(read, c, {.chosen_key = "top_k_experts"});
  mixture.own_norms = OwnNorms{.expert_scales = true};
  for (Layer& layer : c.layers) {
    mixture.shared = shared_expert(mixture, layer.feed_forward().width);
    layer.network = mixture;
  }
}

void set_head_dim(const Reader& read, Attention& a, std::int64_t value, const std::string& where) {
  a.head_dim = static_cast<std::int32_t>(read.in_range(value, 1, kMaxValueDim, where));
  check_head_dim(read, a.head_dim, where);
}
void set_kv_heads(const Reader& read, Attention& a, std::int64_t value, const std::string& where) {
  a.kv_heads = static_cast<std::int32_t>(read.in_range(value, 1, kMaxHeads, where));
  check_kv_heads(read, a, where);
}

// Returns the value of a GGUF key. Throws if the file does not have the key. There is no default, because models of this family have
// different windows and heads, and GGUF files have all these keys.
std::int64_t said(const Reader& read, const char* gguf_key) {
  const auto value = read.integer(gguf_key, "");
  if (!value) read.missing(read.key(gguf_key, ""));
  return *value;
}

// Reads the settings of single layers that differ from those of the other layers. transformers saves them as {"5": {"head_dim": 512,
// "num_key_value_heads": 4}}, where "5" is the index of a layer.
void read_layer_config(const Reader& read, Config& c, const std::string& at) {
  const auto& entries = read.file().metadata().entries();
  for (auto entry = entries.lower_bound(at + "."); entry != entries.end() && entry->first.starts_with(at + "."); ++entry) {
    const std::string_view rest = std::string_view(entry->first).substr(at.size() + 1);
    const std::size_t dot = rest.find('.');
    const std::string_view number = rest.substr(0, dot);
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), layer);
    if (error != std::errc() || end != number.data() + number.size() || layer >= c.layers.size())
      read.unsupported(at, ": \"", number, "\" is no layer; the model has layers 0 to ", c.layers.size() - 1);
    if (dot == std::string_view::npos) {
      read.object(entry->first);  // throws unless the value is null or an empty object
      continue;
    }
    const std::string_view key = rest.substr(dot + 1);
    if (key != "head_dim" && key != "num_key_value_heads")
      read.unsupported(entry->first, " is not run; head_dim and num_key_value_heads of a layer are");
    const auto value = read.file().integer(entry->first);
    if (!value) continue;  // null: the same value as in other layers
    Attention& a = c.layers[layer].attention();
    key == "head_dim" ? set_head_dim(read, a, *value, entry->first) : set_kv_heads(read, a, *value, entry->first);
  }
}

// Reads the head_dim and kv heads of layers without a window from config.json. `kv_heads` is the number of kv heads of these layers, unless
// config.json has per_layer_config. If `kv_heads` is empty, they have as many as the other layers.
void read_full_heads(const Reader& read, Config& c, std::optional<std::int64_t> kv_heads) {
  const std::string each = read.key("", "per_layer_config");
  if (read.object(each)) return read_layer_config(read, c, each);
  if (read.empty_object(each)) return;  // an empty object means that all layers are alike
  const std::int64_t head_dim = read.integer("", "global_head_dim").value_or(512);
  for (Layer& layer : c.layers) {
    if (layer.windowed) continue;
    set_head_dim(read, layer.attention(), head_dim, read.key("", "global_head_dim"));
    if (kv_heads) set_kv_heads(read, layer.attention(), *kv_heads, read.key("", "num_global_key_value_heads"));
  }
}

// Reads the head_dim of layers with a window from a GGUF file. The keys without "_swa" are for layers without a window.
void read_windowed_heads(const Reader& read, Config& c) {
  const std::int64_t head_dim = said(read, "attention.key_length_swa");
  if (said(read, "attention.value_length_swa") != head_dim)
    read.unsupported(read.key("attention.value_length_swa", ""), " is not ", head_dim, ", as ", read.key("attention.key_length_swa", ""),
                     ": heads of keys and of values must not differ in size");
  for (Layer& layer : c.layers) {
    if (layer.windowed) set_head_dim(read, layer.attention(), head_dim, read.key("attention.key_length_swa", ""));
  }
}

void read_layer_kinds(const Reader& read, Config& c, std::int64_t window) {
  read_windows(read, c, {.window = window, .full_every = 6, .gguf = GgufWindows::size});
  if (c.gguf) return;
  // The last layer has no window, whatever layer_types says.
  c.layers.back().windowed = false;
  c.layers.back().attention().window = 0;
  std::vector<bool> flags;
  for (const Layer& layer : c.layers) flags.push_back(layer.windowed);
  read.gguf_says("attention.sliding_window_pattern", std::move(flags));
}

void read_heads(const Reader& read, Config& c) {
  if (c.gguf) return read_windowed_heads(read, c);
  const bool shared = read.flag("", "attention_k_eq_v", false);
  const std::int64_t narrow = c.layers.front().attention().head_dim;
  read_full_heads(read, c, shared ? read.integer("", "num_global_key_value_heads") : std::nullopt);
  const std::int64_t wide = c.layers.back().attention().head_dim;
  for (const char* key : {"attention.key_length", "attention.value_length"}) read.gguf_says(key, wide);
  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    read.gguf_says(key, narrow);
  say_kv_heads(read, c);
}

// Reads how many of the last layers compute no keys and values. Each of them attends to the keys and values of another layer: the last one
// of the same kind (with or without a window) that computes keys and values.
void read_shared_layers(const Reader& read, Config& c) {
  const std::string where = read.key("attention.shared_kv_layers", "num_kv_shared_layers");
  const auto count = static_cast<std::int64_t>(c.layers.size());
  const auto shared = read.in_range(read.integer("attention.shared_kv_layers", "num_kv_shared_layers").value_or(0), 0, count - 1, where);
  read.gguf_says("attention.shared_kv_layers", shared);
  const auto first = static_cast<std::size_t>(count - shared);
  std::int32_t last[] = {-1, -1};  // the last layer without a window, and the last one with a window; -1: none
  for (std::size_t i = 0; i < first; ++i) last[c.layers[i].windowed] = static_cast<std::int32_t>(i);
  const bool twice_as_wide = read.flag("", "use_double_wide_mlp", false);
  for (std::size_t i = first; i < c.layers.size(); ++i) {
    Layer& layer = c.layers[i];
    Attention& a = layer.attention();
    const std::int32_t number = last[layer.windowed];
    if (number < 0)
      read.unsupported(where, " is ", shared, ": layer ", i, " needs a layer before layer ", first, " that has ",
                       layer.windowed ? "a window too" : "no window either");
    a.kv_from = {.layer = static_cast<std::size_t>(number)};
    const Attention& from = c.layers[a.kv_from->layer].attention();
    if (from.head_dim != a.head_dim || from.kv_heads != a.kv_heads)
      read.unsupported(where, " is ", shared, ": layer ", i, " reads ", a.kv_heads, " heads of ", a.head_dim, ", layer ", number, " keeps ",
                       from.kv_heads, " of ", from.head_dim, "; they must be the same");
    if (twice_as_wide) layer.feed_forward().width *= 2;
  }
  say_widths(read, c);
}

void read_both_ropes(const Reader& read, Config& c) {
  read_ropes(read, c, {.theta = 1e6, .window_theta = 10000, .proportional = 0.25, .by_kind = true});
  // rope_freqs.weight decides which pairs of columns are rotated, so a GGUF file must have it.
  if (c.gguf && !read.file().find("rope_freqs.weight")) missing(read.file(), "rope_freqs.weight");
  // A GGUF file rotates all columns. A large divisor makes the frequency almost 0 for pairs of columns that the rope of config.json does
  // not rotate.
  read.gguf_says("rope.dimension_count", std::int64_t{c.layers.back().attention().head_dim});
  std::vector<float> divisors;
  for (const float frequency : c.ropes.front().inv_freq) divisors.push_back(frequency > 0 ? 1 : 1e30f);
  read.gguf_has("rope_freqs.weight", std::move(divisors));
}

bool has_layer_inputs(const Reader& read) {
  if (read.gguf()) return read.file().find("per_layer_token_embd.weight");
  return std::ranges::any_of(names::kDecoderPrefixes,
                             [&](std::string_view prefix) { return read.file().find(str(prefix, "embed_tokens_per_layer.weight")); });
}

// Returns the largest allowed width of LayerInputs. The columns for all layers are in one row, which has at most 2^24 columns.
std::int64_t most_inputs(const Config& c) { return (std::int64_t{1} << 24) / static_cast<std::int64_t>(c.layers.size()); }

// Reads LayerInputs. config.json may lack the width if it is the default of the configuration class, 256.
void read_layer_inputs(const Reader& read, Config& c) {
  const std::string where = read.key("embedding_length_per_layer_input", "hidden_size_per_layer_input");
  const bool there = has_layer_inputs(read);
  const std::int64_t width = c.gguf                                        ? said(read, "embedding_length_per_layer_input")
                             : read.has("", "hidden_size_per_layer_input") ? read.integer("", "hidden_size_per_layer_input").value_or(0)
                             : there                                       ? 256
                                                                           : 0;
  read.gguf_says("embedding_length_per_layer_input", width);
  if (read.in_range(width, there ? 1 : 0, most_inputs(c), where) == 0) return;
  c.layer_inputs = {.width = static_cast<std::int32_t>(width),
                    .embedding_scale = std::sqrt(static_cast<float>(width)),
                    .projection_scale = 1 / std::sqrt(static_cast<float>(c.hidden_size)),
                    .scale = static_cast<float>(1 / std::numbers::sqrt2),
                    .activation = c.layers.front().feed_forward().activation};
}

// Returns true if the layers without a window have no matrix for values. GGUF files have no key for this, so the function looks for this
// matrix in these layers.
bool values_are_keys(const Reader& read, const Config& c) {
  if (!c.gguf) return read.flag("", "attention_k_eq_v", false);
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    const bool has = read.file().find(str("blk.", i, ".attn_v.weight")) || read.file().find(str("blk.", i, ".attn_qkv.weight"));
    if (has && !c.layers[i].windowed && !c.layers[i].attention().kv_from) return false;
  }
  return true;
}

// Sets the properties that the layers of Gemma 4, its assistants and EmbeddingGemma 2 share. read_layer_inputs() must be called first.
void set_layers(Config& c) {
  for (Layer& layer : c.layers) {
    Attention& a = layer.attention();
    a.scale = 1;
    a.qk_norm = QkNorm::head;
    a.values = {.normalised = true};
    layer.mixer_norms.branch = layer.network_norms.branch = true;
    layer.tail = {.input = c.layer_inputs.has_value(), .scaled = true};
  }
}

void configure(const Reader& read, Config& c) {
  const bool unified = !c.gguf && read.string("", "model_type").value_or("").starts_with("gemma4_unified");
  read_sizes(read, c,
             {.heads = 8,
              .kv_heads = 4,
              .head_dim = 256,
              .n_ctx = unified ? 262144 : 131072,
              .activation = Activation::gelu_tanh,
              .logit_softcap = 0});
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  if (c.gguf) {
    said(read, "attention.sliding_window"), said(read, "attention.key_length");
    if (!read.has("attention.sliding_window_pattern", "")) read.missing(read.key("attention.sliding_window_pattern", ""));
  }
  read_layer_kinds(read, c, unified ? 1024 : 512);
  read_heads(read, c);
  read_both_ropes(read, c);
  read_shared_layers(read, c);
  read_layer_inputs(read, c);
  read_attention_bias(read, c);
  const bool without_values = values_are_keys(read, c);
  set_layers(c);
  for (Layer& layer : c.layers) layer.attention().values->from_keys = without_values && !layer.windowed;
  read_experts(read, c);
}

constexpr std::string_view kAssistantGguf[] = {"gemma4-assistant"};
constexpr std::string_view kAssistantTypes[] = {"gemma4_assistant", "gemma4_unified_assistant"};
constexpr TensorName kProjections[] = {
    {assistant_in, "nextn.pre_projection", "pre_projection"},
    {assistant_out, "nextn.post_projection", "post_projection"},
};
constexpr auto kAssistantNames = names::joined(kNames, kProjections);

// Configures an assistant of Gemma 4. Its layers compute only queries. They attend to keys and values of those layers of the model that
// add_assistant() chooses.
void configure_assistant(const Reader& read, Config& c) {
  const bool unified = !c.gguf && read.string("", "model_type").value_or("").starts_with("gemma4_unified");
  read_sizes(read, c,
             {.heads = 8,
              .kv_heads = 4,
              .head_dim = 256,
              .n_ctx = unified ? 262144 : 131072,
              .activation = Activation::gelu_tanh,
              .all_predict = true});
  const std::string width = c.gguf ? read.key("embedding_length_out", "") : "backbone_hidden_size";
  const auto backbone = c.gguf ? read.file().integer(width) : read.file().integer(width).value_or(1536);
  if (!backbone) read.missing(width);
  c.backbone = Backbone{static_cast<std::int32_t>(read.in_range(*backbone, 1, kMaxWidth, width))};
  read.gguf_says("embedding_length_out", *backbone);
  read.gguf_says("nextn_predict_layers", static_cast<std::int64_t>(c.layers.size()));
  if (c.gguf) {
    said(read, "attention.sliding_window"), said(read, "attention.key_length");
    if (!read.has("attention.sliding_window_pattern", "")) read.missing(read.key("attention.sliding_window_pattern", ""));
  }
  read_layer_kinds(read, c, unified ? 1024 : 512);
  read_heads(read, c);
  read_both_ropes(read, c);
  const std::string shared = read.key("attention.shared_kv_layers", "num_kv_shared_layers");
  const std::int64_t count = read.integer("attention.shared_kv_layers", "num_kv_shared_layers").value_or(0);
  if (count != 0 && count != static_cast<std::int64_t>(c.layers.size()))
    read.unsupported(shared, " is ", count, " of ", c.layers.size(), " layers; all layers of an assistant share keys and values");
  const std::int64_t inputs = read.integer("embedding_length_per_layer_input", "hidden_size_per_layer_input").value_or(0);
  if ((c.gguf || read.has("", "hidden_size_per_layer_input")) && inputs != 0)
    read.unsupported(read.key("embedding_length_per_layer_input", "hidden_size_per_layer_input"), " is ", inputs, " in an assistant");
  for (const char* key : {"enable_moe_block", "use_double_wide_mlp"})
    if (read.flag("", key, false)) read.unsupported(read.key("", key), " true is not run in an assistant");
  read_attention_bias(read, c);
  set_layers(c);
  for (Layer& layer : c.layers) layer.attention().kv_from = KvFrom{};
  if (!c.gguf && read.file().boolean("use_ordered_embeddings").value_or(false))
    c.notes.push_back("the assistant's guesses are chosen among all tokens, without its clusters of tokens (use_ordered_embeddings)");
}

constexpr std::string_view kEmbeddingTypes[] = {"embedding_gemma2_text", "embedding_gemma2"};
constexpr std::string_view kEmbeddingPrefixes[] = {"language_model.", "model.language_model.", "", "model."};
constexpr TensorName kEmbeddingNames[] = {
    {attn_branch_norm, "", "layers.{}.post_attention_layernorm"},
    {ffn_norm, "", "layers.{}.pre_feedforward_layernorm"},
    {ffn_branch_norm, "", "layers.{}.post_feedforward_layernorm"},
    {inputs_projection, "", "ple.per_layer_model_projection"},
    {inputs_norm, "", "ple.per_layer_projection_norm"},
    {input_gate, "", "layers.{}.ple_block.per_layer_input_gate"},
    {input_out, "", "layers.{}.ple_block.per_layer_projection"},
    {input_norm, "", "layers.{}.ple_block.post_per_layer_input_norm"},
    {layer_scale, "", "layers.{}.layer_scalar", Fused::no, false, Bare::safetensors},
    {row_projection, "", "embedding_projection"},
};

// Throws if the matrix that projects token rows has another number of rows than embedding_dim in config.json.
void check_projection(const Reader& read, const Config& c) {
  const std::int32_t width = read.size("", "embedding_dim", kMaxWidth, 768);
  for (const std::string_view prefix : kEmbeddingPrefixes) {
    const files::TensorInfo* found = read.file().find(str(prefix, "embedding_projection.weight"));
    if (found && (found->shape.empty() || found->shape[0] != width))
      wrong_shape(read.file(), *found, str("[", width, ", ", c.hidden_size, "] (embedding_dim, hidden_size)"));
  }
}

void configure_embedder(const Reader& read, Config& c) {
  c.has_head = false;
  c.projects_rows = true;
  read_sizes(read, c, {.heads = 4, .kv_heads = 2, .head_dim = 256, .n_ctx = 262144, .activation = Activation::gelu_tanh});
  check_projection(read, c);
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  read_layer_kinds(read, c, 512);
  read_full_heads(read, c, read.integer("", "num_global_key_value_heads").value_or(1));
  read_ropes(read, c, {.theta = 1e6, .window_theta = 10000, .by_kind = true});
  read_attention_bias(read, c);
  const std::int64_t width = read.integer("", "hidden_size_per_layer_input").value_or(512);
  read.in_range(width, 1, most_inputs(c), read.key("", "hidden_size_per_layer_input"));
  c.layer_inputs = {.width = static_cast<std::int32_t>(width),
                    .table = false,
                    .projection_scale = 1 / std::sqrt(static_cast<float>(c.hidden_size)),
                    .activation = c.layers.front().feed_forward().activation};
  set_layers(c);
  for (Layer& layer : c.layers) layer.attention().causal = false;
}

}  // namespace

const Family gemma4{.name = "gemma4",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = names::kDecoderPrefixes,
                    .names = kAllNames,
                    .more_names = names::kLlama,
                    .keys = kKeys,
                    .configure = configure};

const Family gemma4_assistant{.name = "gemma4_assistant",
                              .gguf_names = kAssistantGguf,
                              .model_types = kAssistantTypes,
                              .prefixes = names::kDecoderPrefixes,
                              .names = kAssistantNames,
                              .more_names = names::kLlama,
                              .keys = kKeys,
                              .configure = configure_assistant,
                              .assists = "gemma4"};

const Family embeddinggemma2{.name = "embeddinggemma2",
                             .model_types = kEmbeddingTypes,
                             .prefixes = kEmbeddingPrefixes,
                             .names = kEmbeddingNames,
                             .more_names = names::kLlama,
                             .keys = kKeys,
                             .configure = configure_embedder};

}  // namespace pumice::model::families_in_files::gemma4
