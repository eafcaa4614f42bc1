// Command-R and Aya (Cohere 2024) have LayerNorm without biases, and scaled logits. Attention and feed-forward network run in parallel,
// after one shared norm. Rope rotates pairs of neighbouring columns, in GGUF and safetensors files alike. In Command-R7B and Command A
// (cohere2), three of four layers have a window, and only these layers have rope. Command A+ (cohere2_moe) begins with dense layers, which
// also have rope, and its other layers have experts.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::cohere {
namespace {

constexpr std::string_view kGguf1[] = {"command-r"}, kTypes1[] = {"cohere"};
constexpr std::string_view kGguf2[] = {"cohere2"}, kTypes2[] = {"cohere2"};

constexpr std::string_view kGgufMoe[] = {"cohere2moe"}, kTypesMoe[] = {"cohere2_moe"};

void read_common(const Reader& read, Config& c, const SizeDefaults& defaults = {.n_ctx = 8192, .eps = 1e-5}) {
  read_sizes(read, c, defaults);
  // logit_scale also applies to the language model of a multimodal model (cohere2_vision). transformers ignores it in the class for the
  // whole multimodal model, but not in the class for the language model.
  c.logit_scale = static_cast<float>(read.positive("logit_scale", "logit_scale", c.gguf ? std::nullopt : std::optional(0.0625)));
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.join.parallel = true;
    layer.network_norms.before = false;
  }
}

void configure1(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  read_common(read, c);
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  // Command-R+ has a LayerNorm on queries and keys, with different weights for each head. pumice does not run such norms.
  const bool norms = c.gguf ? read.file().find("blk.0.attn_q_norm.weight") != nullptr : read.flag("", "use_qk_norm", false);
  if (norms) read.unsupported("use_qk_norm (a norm for each head of queries and keys, with weights of its own) is not run");
}

void configure2(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  read_common(read, c);
  read_windows(read, c, {.window = 4096, .full_every = 4, .gguf = GgufWindows::size});
  read_ropes(read, c, {.interleaved = true});
  for (Layer& layer : c.layers) {
    if (!layer.windowed) layer.attention().rope = -1;
  }
}

// Returns true if the mixture's output is half the sum of experts and shared experts. GGUF files have no key for this, so the function
// returns true for them, as llama.cpp does.
bool averages(const Reader& read) {
  const std::string where = read.key("", "shared_expert_combination_strategy");
  const std::string said = read.string("", "shared_expert_combination_strategy").value_or("average");
  if (said != "average" && said != "sum") read.unsupported(where, " is \"", said, "\"; \"average\" or \"sum\" is needed");
  return said == "average";
}

// Configures Command A+. Its first layers have no experts, and another pattern of windows than the other layers. config.json has a list of
// all layers' types and a list of all layers' windows, or the numbers from which the configuration class computes these lists.
void configure_moe(const Reader& read, Config& c) {
  const bool rms = read.number("attention.layer_norm_rms_epsilon", "rms_norm_eps").has_value();
  c.norm = rms ? NormKind::rms : NormKind::layer;
  read_common(read, c, {.heads = 64, .head_dim = c.gguf ? 0 : 128, .n_ctx = 8192, .eps = 1e-5});
  const DenseDefaults dense{.first_key = "first_k_dense_replace", .types_key = "mlp_layer_types"};
  const std::int64_t lead = c.gguf ? 0 : read.integer("", "first_k_dense_replace").value_or(0);
  const std::int32_t lead_full_every = read.size("", "prefix_dense_sliding_window_pattern", kMaxLayers, 1);
  read_windows(read, c,
               {.window = 4096,
                .full_every = 4,
                .full_first = c.gguf,
                .lead = lead,
                .lead_full_every = lead_full_every,
                .gguf = GgufWindows::by_layer});
  read_ropes(read, c, {.interleaved = true});
  const std::int32_t width = c.layers.front().feed_forward().width;
  read_mixtures(read, c,
                {.width_key = "",
                 .experts = 8,
                 .chosen = 2,
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.key = "expert_selection_fn", .score = c.gguf ? RouteScore::sigmoid : RouteScore::softmax, .either = true},
                 .scale = c.gguf ? std::optional(1.0) : std::nullopt,
                 .shared = SharedDefaults{.key = "num_shared_experts"},
                 .dense = dense});
  const std::int32_t dense_width = c.gguf ? width : read.size("", "prefix_dense_intermediate_size", kMaxWidth * 4, width);
  read.gguf_says("feed_forward_length", std::int64_t{dense_width});
  read.gguf_says("rope.scaling.type", "none");
  read.gguf_lacks({"expert_gating_func"});
  say_shared_width(read, c);
  const bool averaged = averages(read);
  for (Layer& layer : c.layers) {
    if (Mixture* mixture = layer.if_mixture()) {
      // norm_topk_prob of config.json applies only to sigmoid scores. With softmax scores, the softmax is over the logits of the chosen
      // experts only, which is the same as dividing the experts' weights by their sum.
      if (!c.gguf && mixture->router.score == RouteScore::softmax) mixture->router.normalised = true;
      if (mixture->shared && averaged) mixture->combine = Combine::averaged;
    }
    FeedForward* network = layer.if_feed_forward();
    if (network && !c.gguf) network->width = dense_width;
    if (!layer.windowed && !(network && lead_full_every == 1)) layer.attention().rope = -1;
  }
}

}  // namespace

const Family cohere{.name = "cohere",
                    .gguf_names = kGguf1,
                    .model_types = kTypes1,
                    .prefixes = names::kDecoderPrefixes,
                    .names = names::kLlama,
                    .configure = configure1};

const Family cohere2{.name = "cohere2",
                     .gguf_names = kGguf2,
                     .model_types = kTypes2,
                     .prefixes = names::kDecoderPrefixes,
                     .names = names::kLlama,
                     .configure = configure2};

const Family cohere2_moe{.name = "cohere2_moe",
                         .gguf_names = kGgufMoe,
                         .model_types = kTypesMoe,
                         .prefixes = names::kDecoderPrefixes,
                         .names = names::kExpertsAndShared,
                         .more_names = names::kLlama,
                         .configure = configure_moe};

}  // namespace pumice::model::families_in_files::cohere
