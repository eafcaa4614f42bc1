// Qwen 2, 2.5, QwQ and R1-Distill-Qwen (Yang et al. 2024) have biases on q, k and v only. Qwen 3 (Yang et al. 2025) has no biases, and a
// norm for each head of q and k. The language models of Qwen2-VL and Qwen2.5-VL are a Qwen 2, and that of Qwen3-VL is a Qwen 3. Their ropes
// have sections, which rotate tokens of text as plain rope does. The embedders voyage-4-nano and pplx-embed (2026) are a Qwen 3 with
// bidirectional attention. voyage-4-nano projects each row after the final norm.
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::qwen {
namespace {

constexpr std::string_view kGguf2[] = {"qwen2", "qwen2vl"};
constexpr std::string_view kTypes2[] = {"qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"};
constexpr std::string_view kGguf3[] = {"qwen3", "qwen3vl"};
constexpr std::string_view kTypes3[] = {"qwen3", "qwen3_vl_text", "qwen3_vl", "bidirectional_pplx_qwen3"};
constexpr TensorName kNames3[] = {{Role::row_projection, "", "linear"}};

// Reads what all families of this file have. A layer has a window only if use_sliding_window is true and the layer's index is at least
// max_window_layers.
void read_common(const Reader& read, Config& c, SizeDefaults sizes, const WindowDefaults& windows, double theta) {
  sizes.n_ctx = 32768;
  read_sizes(read, c, sizes);
  read_windows(read, c, windows);
  read_ropes(read, c, {.theta = theta});
}
constexpr WindowDefaults kWindows{.window = 4096, .used = false, .first = 28}, kWindowsVl{.window = 4096, .used = false, .first = 80};

void configure2(const Reader& read, Config& c) {
  if (!c.gguf && read.text("model_type") != kTypes2[0])
    read_common(read, c, {.kv_heads = 8, .eps = 1e-5}, kWindowsVl, 1e6);
  else
    read_common(read, c, {.kv_heads = 32}, kWindows, 10000);
  for (Layer& layer : c.layers) layer.attention().qkv_bias = true;
  if (!c.gguf && read.text("model_type") != kTypes2[0]) {
    read.gguf_says(kArchitecture, "qwen2vl");
    say_sections(read, {});
  }
}

// Makes attention bidirectional, for embedders that were trained in this way (voyage-4-nano, pplx-embed).
void see_both_ways(const Reader& read, Config& c) {
  for (Layer& layer : c.layers) {
    Attention& a = layer.attention();
    if (a.window > 0)
      read.unsupported(read.key("", "use_bidirectional_attention"), " beside a window of ", a.window,
                       ": where such a window of qwen3 ends is not known");
    a.causal = false;
  }
}

void configure3(const Reader& read, Config& c) {
  read_common(read, c, {.kv_heads = 32, .head_dim = 128}, kWindows, 10000);
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head;
  const std::string type = c.gguf ? "" : read.text("model_type");
  const bool pplx = type == kTypes3[3];
  if (pplx) read.gguf_says(kArchitecture, "");  // llama.cpp's converter does not know pplx-embed
  if (type.starts_with("qwen3_vl")) {
    read.gguf_says(kArchitecture, "qwen3vl");
    say_sections(read, {});
    if (read.notes()) {
      const auto deep = read.file().integer_list("vision_config.deepstack_visual_indexes").value_or(std::vector<std::int64_t>{});
      read.gguf_says("n_deepstack_layers", static_cast<std::int64_t>(deep.size()));
    }
  }
  if (pplx || read.flag("", "use_bidirectional_attention", false)) see_both_ways(read, c);
}

}  // namespace

const Family qwen2{.name = "qwen2",
                   .gguf_names = kGguf2,
                   .model_types = kTypes2,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kLlama,
                   .configure = configure2};

const Family qwen3{.name = "qwen3",
                   .gguf_names = kGguf3,
                   .model_types = kTypes3,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames3,
                   .more_names = names::kLlama,
                   .configure = configure3};

}  // namespace pumice::model::families_in_files::qwen
