// GPT-2 (Radford et al. 2019) has LayerNorm, learned positions, one tensor for q, k and v, biases in all matrix products, and a head tied
// to the embedding. The other models here are a GPT-2 with some differences. StarCoder 1 and SantaCoder (Li et al. 2023, "gpt_bigcode")
// have a single kv head (Shazeer 2019), and safetensors files store their matrices untransposed. OPT (Zhang et al. 2022) has relu and
// separate tensors for q, k and v, and its position table begins at row 2. GPT-Neo (Black et al. 2021) has separate tensors for q, k and v,
// and these have no biases. Its scores are not scaled, and every other layer has a window.
#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gpt2 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"gpt2"}, kTypes[] = {"gpt2"}, kPrefixes[] = {"transformer.", ""};
constexpr KeyName kKeys[] = {
    {"hidden_size", "n_embd"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {"intermediate_size", "n_inner"},
    {"max_position_embeddings", "n_positions"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation_function"},
};
constexpr TensorName kNames[] = {
    {token_embedding, "token_embd", "wte"},
    {position_embedding, "position_embd", "wpe"},
    {attn_norm, "blk.{}.attn_norm", "h.{}.ln_1"},
    {q, "", "h.{}.attn.c_attn", Fused::qkv, true},
    {k, "", "h.{}.attn.c_attn", Fused::qkv, true},
    {v, "", "h.{}.attn.c_attn", Fused::qkv, true},
    {attn_out, "blk.{}.attn_output", "h.{}.attn.c_proj", Fused::no, true},
    {ffn_norm, "blk.{}.ffn_norm", "h.{}.ln_2"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.c_fc", Fused::no, true},
    {down, "blk.{}.ffn_down", "h.{}.mlp.c_proj", Fused::no, true},
    {final_norm, "output_norm", "ln_f"},
    {head, "output", "lm_head"},
};

void configure_both(const Reader& read, Config& c, std::int32_t kv_heads) {
  c.norm = NormKind::layer;
  c.norm_bias = c.learned_positions = true;
  read_sizes(read, c, {.kv_heads = kv_heads, .ffn_factor = 4, .n_ctx = 1024, .eps = 1e-5, .activation = Activation::gelu_tanh});
  if (read.flag("", "add_cross_attention", false)) read.unsupported("add_cross_attention (the decoder of a pair) is not run");
  const bool scaled = read.flag("", "scale_attn_weights", true);
  for (Layer& layer : c.layers) {
    if (!scaled) layer.attention().scale = 1;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.feed_forward().gated = false;
  }
}

void configure(const Reader& read, Config& c) {
  configure_both(read, c, kNoSuchKey);
  if (!read.flag("", "scale_attn_by_inverse_layer_idx", false)) return;
  for (std::size_t i = 0; i < c.layers.size(); ++i) c.layers[i].attention().scale /= static_cast<float>(i + 1);
}

constexpr std::string_view kBigcodeGguf[] = {"starcoder"}, kBigcodeTypes[] = {"gpt_bigcode"};
constexpr TensorName kBigcodeNames[] = {
    {q, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {k, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {v, "blk.{}.attn_qkv", "h.{}.attn.c_attn", Fused::qkv},
    {attn_out, "blk.{}.attn_output", "h.{}.attn.c_proj"},
    {up, "blk.{}.ffn_up", "h.{}.mlp.c_fc"},
    {down, "blk.{}.ffn_down", "h.{}.mlp.c_proj"},
};

void configure_bigcode(const Reader& read, Config& c) {
  configure_both(read, c, 1);
  if (!read.flag("", "multi_query", true)) read.unsupported("multi_query false (each head with keys of its own) is not run");
}

constexpr std::string_view kNeoTypes[] = {"gpt_neo"};
constexpr KeyName kNeoKeys[] = {
    {"num_attention_heads", "num_heads"},
    {"num_hidden_layers", "num_layers"},
    {"layer_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "activation_function"},
};
constexpr TensorName kNeoNames[] = {
    {q, "", "h.{}.attn.attention.q_proj"},
    {k, "", "h.{}.attn.attention.k_proj"},
    {v, "", "h.{}.attn.attention.v_proj"},
    {attn_out, "", "h.{}.attn.attention.out_proj"},
    {up, "", "h.{}.mlp.c_fc"},
    {down, "", "h.{}.mlp.c_proj"},
};

// Returns "global" or "local" for each layer. "local" means that the layer has a window. If config.json has no list attention_layers of
// these words, attention_types has lists of words, each with the number of times that the list is repeated: [[["global", "local"], 12]].
std::vector<std::string> read_attention_layers(const Reader& read, std::size_t count) {
  if (const auto said = read.file().strings(read.key("", "attention_layers"))) return *said;
  const std::string types = read.key("", "attention_types");
  std::vector<std::string> layers;
  std::size_t lists = 0;
  for (; read.file().has(str(types, ".", lists, ".0")); ++lists) {
    const auto words = read.file().strings(str(types, ".", lists, ".0")).value_or(std::vector<std::string>{});
    const std::string times = str(types, ".", lists, ".1");
    const std::int64_t repeated = read.in_range(read.file().integer(times).value_or(0), 1, kMaxLayers, times);
    for (std::int64_t i = 0; i < repeated && layers.size() <= count; ++i) layers.insert(layers.end(), words.begin(), words.end());
  }
  if (lists > 0) return layers;
  const files::Value* other = read.file().value(types);
  if (other && !std::holds_alternative<std::monostate>(*other)) read.unsupported(types, " is no list of lists of layers");
  for (std::size_t i = 0; i < count; ++i) layers.push_back(i % 2 == 0 ? "global" : "local");
  return layers;
}

void configure_neo(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.learned_positions = true;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .ffn_factor = 4, .n_ctx = 2048, .eps = 1e-5, .activation = Activation::gelu_tanh});
  const std::int32_t window = read.size("", "window_size", kMaxContext, 256);
  const auto kinds = read_attention_layers(read, c.layers.size());
  if (kinds.size() != c.layers.size())
    read.unsupported("attention_layers (or attention_types) has ", kinds.size(), " entries for ", c.layers.size(),
                     " layers; one for each layer is needed");
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    if (kinds[i] != "global" && kinds[i] != "local")
      read.unsupported("attention_layers: layer type \"", kinds[i], "\" is not known; there are global and local");
    Layer& layer = c.layers[i];
    layer.windowed = kinds[i] == "local";
    layer.attention().window = layer.windowed && window < c.n_ctx ? window : 0;
    layer.attention().scale = 1;
    layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.feed_forward().gated = false;
  }
}

constexpr std::string_view kOptTypes[] = {"opt"}, kOptPrefixes[] = {"model.decoder.", "decoder."};
constexpr KeyName kOptKeys[] = {{"intermediate_size", "ffn_dim"}, {"hidden_act", "activation_function"}};
constexpr TensorName kOptNames[] = {
    {position_embedding, "", "embed_positions"},
    {attn_norm, "", "layers.{}.self_attn_layer_norm"},
    {attn_out, "", "layers.{}.self_attn.out_proj"},
    {ffn_norm, "", "layers.{}.final_layer_norm"},
    {up, "", "layers.{}.fc1"},
    {down, "", "layers.{}.fc2"},
    {final_norm, "", "final_layer_norm"},
};

void configure_opt(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.learned_positions = true;
  c.position_offset = 2;
  c.norm_weight = c.norm_bias = read.flag("", "layer_norm_elementwise_affine", true);
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .eps = 1e-5, .activation = Activation::relu});
  if (!read.flag("", "do_layer_norm_before", true)) read.unsupported("do_layer_norm_before false (OPT-350M) is not run");
  if (read.flag("", "_remove_final_layer_norm", false)) read.unsupported("_remove_final_layer_norm is not run");
  if (const auto width = read.integer("", "word_embed_proj_dim"); width && *width != c.hidden_size)
    read.unsupported("word_embed_proj_dim ", *width, " beside hidden_size ", c.hidden_size, " (OPT-350M) is not run");
  for (Layer& layer : c.layers) {
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = read.flag("", "enable_bias", true);
    layer.feed_forward().gated = false;
  }
}

}  // namespace

const Family gpt2{.name = "gpt2",
                  .gguf_names = kGguf,
                  .model_types = kTypes,
                  .prefixes = kPrefixes,
                  .names = kNames,
                  .keys = kKeys,
                  .configure = configure};

const Family gpt_bigcode{.name = "gpt_bigcode",
                         .gguf_names = kBigcodeGguf,
                         .model_types = kBigcodeTypes,
                         .prefixes = kPrefixes,
                         .names = kBigcodeNames,
                         .more_names = kNames,
                         .keys = kKeys,
                         .configure = configure_bigcode};

const Family gpt_neo{.name = "gpt_neo",
                     .model_types = kNeoTypes,
                     .prefixes = kPrefixes,
                     .names = kNeoNames,
                     .more_names = kNames,
                     .keys = kNeoKeys,
                     .configure = configure_neo};

const Family opt{.name = "opt",
                 .model_types = kOptTypes,
                 .prefixes = kOptPrefixes,
                 .names = kOptNames,
                 .more_names = names::kLlama,
                 .keys = kOptKeys,
                 .configure = configure_opt};

}  // namespace pumice::model::families_in_files::gpt2
