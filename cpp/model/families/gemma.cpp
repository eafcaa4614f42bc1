// Gemma (Gemma Team 2024) multiplies embeddings by sqrt(hidden_size), and its safetensors files store w - 1 for a norm's weight w. Gemma 2
// (2024) has norms before and after each branch, soft caps, and a window in every other layer. The language model of Gemma 3 (2025) has no
// soft caps, a norm for each head of q and k, and a window in five of six layers.
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::gemma {
namespace {

using enum Role;

constexpr TensorName kNames[] = {
    {attn_branch_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.pre_feedforward_layernorm"},
    {ffn_branch_norm, "blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::string_view kGguf1[] = {"gemma"}, kTypes1[] = {"gemma"};
constexpr std::string_view kGguf2[] = {"gemma2"}, kTypes2[] = {"gemma2"};
constexpr std::string_view kGguf3[] = {"gemma3", "gemma-embedding"}, kTypes3[] = {"gemma3_text", "gemma3"};
constexpr KeyName kKeys[] = {{"hidden_act", "hidden_activation"}};  // the key in Gemma 2 and 3

void read_common(const Reader& read, Config& c, const SizeDefaults& sizes) {
  c.norm_offset = !c.gguf;  // only folders store w - 1 for a norm's weight w
  read_sizes(read, c, sizes);
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  read_attention_bias(read, c);
}

// Sets the scale of attention scores in GGUF files of Gemma 2 27B and Gemma 3 27B. Only these models divide scores by sqrt(hidden_size /
// heads), and GGUF files have no key for it (ggml-org/llama.cpp#13951). A 27B model is recognized by its number of layers.
void scale_of_27b(Config& c, std::size_t its_layers) {
  if (!c.gguf || c.layers.size() != its_layers) return;
  for (Layer& layer : c.layers)
    layer.attention().scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.hidden_size) / layer.attention().heads));
}

// Configures Gemma 1. Its first config.json files have the activation "gelu", but the models need gelu_tanh.
void configure1(const Reader& read, Config& c) {
  read_common(read, c, {.heads = 16, .kv_heads = 16, .head_dim = 256, .n_ctx = 8192, .activation = Activation::gelu_tanh});
  read_ropes(read, c, {});
  for (Layer& layer : c.layers) {
    if (layer.feed_forward().activation == Activation::gelu) layer.feed_forward().activation = Activation::gelu_tanh;
  }
}

void configure2(const Reader& read, Config& c) {
  read_common(read, c,
              {.heads = 8,
               .kv_heads = 4,
               .head_dim = 256,
               .query_pre_attn_scalar = 256,
               .n_ctx = 8192,
               .activation = Activation::gelu_tanh,
               .attention_softcap = 50,
               .logit_softcap = 30});
  read_windows(read, c, {.window = 4096, .full_every = 2, .gguf = GgufWindows::size});
  read_ropes(read, c, {});
  scale_of_27b(c, 46);
  for (Layer& layer : c.layers) layer.mixer_norms.branch = layer.network_norms.branch = true;
}

// Returns true if the model has bidirectional attention, as EmbeddingGemma does (Schechter Vera et al. 2025). EmbeddingGemma is a Gemma 3
// whose windows reach to both sides of a token.
bool sees_both_ways(const Reader& read) {
  return read.gguf() ? read.text("general.architecture") == kGguf3[1] : read.flag("", "use_bidirectional_attention", false);
}

// Reads which of EmbeddingGemma's two matrices after pooling the GGUF file has. llama.cpp's converter writes them only with a special
// option.
void read_dense_layers(const Reader& read, Config& c) {
  if (!c.gguf || read.text("general.architecture") != kGguf3[1]) return;
  std::string missing;
  for (const char* name : {"dense_2", "dense_3"}) {
    if (read.file().find(str(name, ".weight")))
      c.dense.push_back(name);
    else
      missing += str(missing.empty() ? "" : ", ", name, ".weight");
  }
  if (missing.empty()) return;
  c.incomplete.push_back(str("lacks Dense layers of EmbeddingGemma (", missing,
                             "): vectors are not the original model's. Load its folder, or a file ",
                             "that llama.cpp converted with --sentence-transformers-dense-modules"));
}

// Configures Gemma 3. The defaults are those of Gemma3TextConfig. The 4B needs them, because its config.json has no numbers of heads, no
// context length and no rope base.
void configure3(const Reader& read, Config& c) {
  const bool both_ways = sees_both_ways(read);
  read_dense_layers(read, c);
  read_common(read, c,
              {.heads = 8,
               .kv_heads = 4,
               .head_dim = 256,
               .query_pre_attn_scalar = 256,
               .n_ctx = 131072,
               .activation = Activation::gelu_tanh,
               .logit_softcap = 0});
  read_windows(read, c, {.window = 4096, .full_every = 6, .symmetric = both_ways, .gguf = GgufWindows::size});
  read_ropes(read, c, {.theta = 1e6, .window_theta = 10000});
  read.gguf_lacks({"final_logit_softcapping"});
  if (both_ways) {
    read.gguf_says(kArchitecture, std::string(kGguf3[1]));
    read.gguf_lacks({"rope.freq_base_swa"});
  }
  scale_of_27b(c, 62);
  for (Layer& layer : c.layers) {
    layer.attention().causal = !both_ways;
    layer.attention().qk_norm = QkNorm::head;
    layer.mixer_norms.branch = layer.network_norms.branch = true;
  }
}

}  // namespace

const Family gemma{.name = "gemma",
                   .gguf_names = kGguf1,
                   .model_types = kTypes1,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kLlama,
                   .configure = configure1};

const Family gemma2{.name = "gemma2",
                    .gguf_names = kGguf2,
                    .model_types = kTypes2,
                    .prefixes = names::kDecoderPrefixes,
                    .names = kNames,
                    .more_names = names::kLlama,
                    .keys = kKeys,
                    .configure = configure2};

const Family gemma3{.name = "gemma3",
                    .gguf_names = kGguf3,
                    .model_types = kTypes3,
                    .prefixes = names::kDecoderPrefixes,
                    .names = kNames,
                    .more_names = names::kLlama,
                    .keys = kKeys,
                    .configure = configure3};

}  // namespace pumice::model::families_in_files::gemma
