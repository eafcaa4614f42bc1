// K-EXAONE (LG AI Research 2026): the first layers are dense, and the other layers have experts and shared experts. Three of four layers
// have a window, and only these layers have rope.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::exaone_moe {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"exaone-moe"}, kTypes[] = {"exaone_moe"};
constexpr TensorName kOwnNames[] = {
    {router_choice_bias, "blk.{}.exp_probs_b.bias", "layers.{}.mlp.e_score_correction_bias", Fused::no, false, Bare::both}};
constexpr auto kNames = names::joined(kOwnNames, names::kExpertsAndShared);

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 32, .kv_heads = 32, .eps = 1e-5});
  read_windows(read, c, {.window = c.gguf ? 0 : 4096, .full_every = 4, .gguf = GgufWindows::by_layer});
  read_ropes(read, c, {});
  // If sliding_window is null, no layer has a window and all layers have rope.
  const bool says = read.has("attention.sliding_window", "sliding_window");
  const bool windows = says ? read.integer("attention.sliding_window", "sliding_window").value_or(0) > 0 : !c.gguf;
  for (Layer& layer : c.layers) {
    if (windows && !layer.windowed) layer.attention().rope = -1;
    layer.attention().qk_norm = QkNorm::head;
  }
  read_mixtures(read, c,
                {.experts = 64,
                 .chosen = 8,
                 .width = 1024,
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale = 2.5,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.key = "num_shared_experts", .count = 1},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 1, .types_key = "mlp_layer_types"}});
  say_shared_width(read, c);
}

}  // namespace

const Family exaone_moe{.name = "exaone_moe",
                        .gguf_names = kGguf,
                        .model_types = kTypes,
                        .prefixes = names::kDecoderPrefixes,
                        .names = kNames,
                        .more_names = names::kLlama,
                        .configure = configure};

}  // namespace pumice::model::families_in_files::exaone_moe
