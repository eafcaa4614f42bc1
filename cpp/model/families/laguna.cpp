// Laguna (Poolside 2026) begins with dense layers, and its other layers have experts and a shared expert. It has norms of queries and keys,
// and a softplus gate on the output of attention. Layers with a window have their own rope and their own number of query heads.
#include <algorithm>
#include <string>

#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::laguna {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"laguna"}, kTypes[] = {"laguna"};
constexpr TensorName kOwnNames[] = {
    {attn_gate, "blk.{}.attn_gate", "layers.{}.self_attn.g_proj"},
    // the tensor's name in files on the hub
    {router_choice_bias, "", "layers.{}.mlp.experts.e_score_correction_bias", Fused::no, false, Bare::both},
};
constexpr auto kNames = names::joined(kOwnNames, names::kExpertsAndShared);

// Returns true if the gate has one column per head. config.json says this with the key `gating`. In GGUF files it follows from the shape of
// the gate's tensor.
bool gates_heads(const Reader& read, const Config& c) {
  if (c.gguf) {
    const files::TensorInfo* gate = read.file().find("blk.0.attn_gate.weight");
    return !gate || gate->shape.empty() || gate->shape.front() == c.layers.front().attention().heads;
  }
  const std::string where = read.key("", "gating");
  const auto* said = read.file().value(where);
  if (said && std::holds_alternative<std::string>(*said)) {
    const std::string kind = read.text(where);
    if (kind != "per-head" && kind != "per-element")
      read.unsupported(where, " is \"", kind, "\"; \"per-head\" or \"per-element\" is needed");
    return kind == "per-head";
  }
  if (!read.flag("", "gating", true)) read.unsupported(where, " false (attention without a gate) is not run");
  return true;
}

// Throws if config.json has settings that no published model has, and that transformers ignores or refuses.
void refuse_others(const Reader& read, bool by_head) {
  for (const char* key : {"moe_apply_router_weight_on_input", "swa_attention_sink_enabled"}) {
    if (read.flag("", key, false)) read.unsupported(read.key("", key), " is not run for laguna; it must be false");
  }
  if (read.gguf()) return;
  const std::string where = read.key("", "gating_types");
  for (const std::string& kind : read.file().strings(where).value_or(std::vector<std::string>{})) {
    if (kind != (by_head ? "per_head" : "per_element") && kind != (by_head ? "per-head" : "per-element"))
      read.unsupported(where, " has \"", kind, "\": gates of different widths in one model are not run");
  }
}

// Returns the defaults for reading the ropes. Layers with and without a window each have their own base and their own fraction of rotated
// columns. If config.json has rope_parameters, a missing fraction means that all columns are rotated. Otherwise the defaults of the
// configuration class apply.
RopeDefaults rope_defaults(const Reader& read, const Config& c) {
  if (c.gguf) return {.window_theta = read.positive("rope.freq_base", "", 10000.0)};
  const std::string object = read.key("", "rope_parameters");
  const bool said = read.object(object) || read.empty_object(object);
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    const bool used = std::ranges::any_of(c.layers, [&](const Layer& layer) { return layer.windowed == (kind[0] == 's'); });
    const std::string where = read.key("", std::string("rope_parameters.") + kind);
    if (said && used && !read.object(where)) read.missing(where);
  }
  return {.theta = 500000, .partial = said ? 1 : 0.5, .window_partial = 1, .window_theta = 10000, .gguf_ramp = true, .by_kind = true};
}

// Records the GGUF keys that llama.cpp's converter always writes, and removes the notes of keys that it never writes.
void say_all(const Reader& read, const Config& c) {
  std::vector<std::int64_t> heads;
  for (const Layer& layer : c.layers) heads.push_back(layer.attention().heads);
  read.gguf_says("attention.head_count", std::move(heads));
  const std::int64_t columns = c.layers.front().attention().head_dim;
  for (const char* key : {"attention.key_length", "attention.value_length"}) read.gguf_says(key, columns);
  read.gguf_says("expert_weights_norm", true);
  read.gguf_lacks({"router_logit_softcapping"});
  if (read.integer("", "sliding_window").value_or(0) == 0) read.gguf_lacks({"attention.sliding_window"});
  if (!read.gguf() && read.object(read.key("", "rope_parameters.sliding_attention")))
    read.gguf_says("rope.dimension_count_swa", static_cast<std::int64_t>(2 * c.ropes.back().inv_freq.size()));
  else
    read.gguf_lacks({"rope.freq_base_swa"});
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.heads = 48, .kv_heads = 8, .head_dim = 128, .n_ctx = 131072, .own_heads = true});
  // If a GGUF file has a window but no list of layers, three of four layers have the window (llama.cpp). If config.json has no list, no
  // layer has a window.
  const bool pattern = c.gguf && read.integer("attention.sliding_window", "").value_or(0) != 0;
  read_windows(read, c, {.window = c.gguf ? 0 : 512, .full_every = pattern ? 4 : 1, .full_first = c.gguf, .gguf = GgufWindows::size});
  read_ropes(read, c, rope_defaults(read, c));
  read_attention_bias(read, c);
  const bool by_head = gates_heads(read, c);
  refuse_others(read, by_head);
  for (Layer& layer : c.layers) {
    layer.attention().qk_norm = QkNorm::head;
    layer.attention().gate = OutputGate{.by_head = by_head, .activation = Activation::softplus};
  }
  read_mixtures(read, c,
                {.experts = 256,
                 .chosen = 8,
                 .width = 512,
                 .normalised_key = "",
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.key = "moe_router_score_func", .score = RouteScore::sigmoid},
                 .softcap_key = "moe_router_logit_softcapping",
                 .choice_bias = true,
                 .scale_key = "moe_routed_scaling_factor",
                 .scale = 1,
                 .shared = SharedDefaults{.width_key = "shared_expert_intermediate_size", .width = 512},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 1, .types_key = "mlp_layer_types"}});
  say_all(read, c);
}

}  // namespace

const Family laguna{.name = "laguna",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = names::kDecoderPrefixes,
                    .names = kNames,
                    .more_names = names::kLlama,
                    .configure = configure};

}  // namespace pumice::model::families_in_files::laguna
