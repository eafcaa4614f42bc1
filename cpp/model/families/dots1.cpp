// dots.llm1 (rednote-hilab 2025): the first layers are dense, the other layers have experts and shared experts, and each head of q and k is
// normalised.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::dots1 {
namespace {

constexpr std::string_view kGguf[] = {"dots1"}, kTypes[] = {"dots1"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 32, .kv_heads = 32});
  read_windows(read, c, {.window = 4096, .first = 62});
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head;
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .width = 1408,
                 .normalised = false,
                 .gguf_normalised = false,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale = 1,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace"}});
}

}  // namespace

const Family dots1{.name = "dots1",
                   .gguf_names = kGguf,
                   .model_types = kTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kExpertsAndShared,
                   .more_names = names::kLlama,
                   .configure = configure};

}  // namespace pumice::model::families_in_files::dots1
