// The language models of Llama 4 Scout and Maverick (Meta 2025). Each token has one expert and a shared expert. The expert's input is the
// token's row multiplied by the router's sigmoid. Three of four layers have rope and attend within chunks of the text. The others have no
// rope, and their queries are multiplied by a factor that grows with the position.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::llama4 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"llama4"}, kTypes[] = {"llama4", "llama4_text"};
constexpr TensorName kNames[] = {
    {gate, "blk.{}.ffn_gate", "layers.{}.feed_forward.gate_proj"},
    {up, "blk.{}.ffn_up", "layers.{}.feed_forward.up_proj"},
    {down, "blk.{}.ffn_down", "layers.{}.feed_forward.down_proj"},
    {router, "blk.{}.ffn_gate_inp", "layers.{}.feed_forward.router"},
    {expert_gate, "blk.{}.ffn_gate_exps", ""},
    {expert_up, "blk.{}.ffn_up_exps", ""},
    {expert_gate, "blk.{}.ffn_gate_up_exps", "layers.{}.feed_forward.experts.gate_up_proj", Fused::expert_gate_up, true, Bare::safetensors},
    {expert_up, "blk.{}.ffn_gate_up_exps", "layers.{}.feed_forward.experts.gate_up_proj", Fused::expert_gate_up, true, Bare::safetensors},
    {expert_down, "blk.{}.ffn_down_exps", "layers.{}.feed_forward.experts.down_proj", Fused::no, true, Bare::safetensors},
    {shared_gate, "blk.{}.ffn_gate_shexp", "layers.{}.feed_forward.shared_expert.gate_proj"},
    {shared_up, "blk.{}.ffn_up_shexp", "layers.{}.feed_forward.shared_expert.up_proj"},
    {shared_down, "blk.{}.ffn_down_shexp", "layers.{}.feed_forward.shared_expert.down_proj"},
};

// The length of chunks (kChunk), the length and the growth of Temperature (kLengths, kGrowth), and the interval of layers without rope
// (kInterval). llama.cpp has these numbers in its code and not in GGUF files. They are also the defaults of Llama4TextConfig.
constexpr std::int64_t kChunk = 8192, kLengths = 8192, kInterval = 4;
constexpr double kGrowth = 0.1;
// The number of experts of Maverick, by which llama.cpp recognizes it. Maverick has no norms of q and k.
constexpr std::int64_t kExpertsWithoutNorms = 128;

// Throws if a GGUF file has keys with other values than the constants above. llama.cpp does not read these keys, so such a file was made
// for another program.
void refuse_other_layers(const Reader& read) {
  const auto refuse = [&](const char* key, std::int64_t needed) {
    if (!read.has(key, "")) return;
    const std::int64_t said = read.integer(key, "").value_or(0);
    if (said != needed) read.unsupported(read.key(key, ""), " is ", said, "; llama4 needs ", needed, ", or no such key");
  };
  refuse("attention.sliding_window", kChunk);
  refuse("attention.sliding_window_pattern", kInterval);
  if (read.has("rope.freq_base_swa", "") && read.number("rope.freq_base_swa", "") != read.number("rope.freq_base", ""))
    read.unsupported(read.key("rope.freq_base_swa", ""), " differs from ", read.key("rope.freq_base", ""), "; llama4 has one rope");
}

// Returns one flag per layer, true if the layer has rope. The list in config.json may be longer than the number of layers. An empty list
// counts as a missing list.
std::vector<bool> layers_with_rope(const Reader& read, std::size_t count) {
  std::vector<std::int64_t> said;
  if (!read.gguf()) said = read.file().integer_list(read.key("", "no_rope_layers")).value_or(said);
  if (!said.empty() && said.size() < count)
    read.unsupported("no_rope_layers has ", said.size(), " entries for ", count, " layers; one for each layer is needed");
  const std::int64_t interval =
      read.gguf() ? kInterval
                  : read.in_range(read.integer("", "no_rope_layer_interval").value_or(kInterval), 1, kMaxLayers, "no_rope_layer_interval");
  std::vector<bool> with;
  for (std::size_t i = 0; i < count; ++i)
    with.push_back(said.empty() ? (static_cast<std::int64_t>(i) + 1) % interval != 0 : read.in_range(said[i], 0, 1, "no_rope_layers") != 0);
  return with;
}

// Returns one flag per layer, true if the layer attends within chunks. If config.json has no layer_types, these are the layers with rope.
std::vector<bool> layers_with_chunks(const Reader& read, std::vector<bool> with_rope) {
  constexpr std::string_view kChunked = "chunked_attention", kFull = "full_attention";
  constexpr TypeName kTypeNames[] = {{kChunked, kChunked}, {kFull, kFull}};
  const auto types = read_layer_types(read, with_rope.size(), kTypeNames, "layer_types");
  for (std::size_t i = 0; i < types.size(); ++i) with_rope[i] = types[i] == kChunked;
  return with_rope;
}

// Returns the length of chunks, or 0 if no layer has chunks. In config.json, null means that no layer has chunks, and a missing key means
// the default length.
std::int64_t read_chunk(const Reader& read, const std::vector<bool>& chunked) {
  const bool none = !read.gguf() && read.has("", "attention_chunk_size") && !read.integer("", "attention_chunk_size");
  if (none && read.has("", "layer_types") && std::ranges::count(chunked, true) > 0)
    read.unsupported("attention_chunk_size is null, and layer_types has chunked_attention, which needs a number");
  if (none) return 0;
  return read.in_range(read.integer("", "attention_chunk_size").value_or(kChunk), 1, kMaxContext, "attention_chunk_size");
}

// Returns true if queries are multiplied by a factor that grows with the position. Files of 2025 have a number in place of the flag.
bool has_temperature(const Reader& read) {
  const files::Value* said = read.gguf() ? nullptr : read.file().value(read.key("", "attn_temperature_tuning"));
  if (said && std::holds_alternative<std::int64_t>(*said)) return std::get<std::int64_t>(*said) != 0;
  return read.flag("", "attn_temperature_tuning", true);
}

void read_attention(const Reader& read, Config& c) {
  const std::vector<bool> turned = layers_with_rope(read, c.layers.size()), chunked = layers_with_chunks(read, turned);
  const std::int64_t chunk = read_chunk(read, chunked);
  const bool norms = c.gguf ? read.integer("expert_count", "").value_or(0) != kExpertsWithoutNorms : read.flag("", "use_qk_norm", true);
  Temperature temperature{.offset = 1};
  temperature.length = read.size("", "floor_scale", kMaxContext, kLengths);
  const double growth = read.number("", "attn_scale").value_or(kGrowth);
  if (!(growth >= 0 && growth < 1e3)) read.bad_number("attn_scale", growth, "0 to 1000");
  temperature.growth = static_cast<float>(growth);
  // If the context is shorter than temperature.length, the factor is 1 at all positions.
  const bool tempered = has_temperature(read) && growth > 0 && temperature.length <= c.n_ctx;
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    Attention& a = c.layers[i].attention();
    if (chunked[i] && chunk > 0 && chunk < c.n_ctx) a.chunks = {.length = static_cast<std::int32_t>(chunk)};
    if (turned[i]) {
      if (norms) a.qk_norm = QkNorm::plain_after_rope;
      continue;
    }
    a.rope = -1;
    if (tempered) a.temperature = temperature;
  }
}

// Returns one flag per layer, true if the layer has experts. If config.json has both a list and an interval, the list is used.
std::vector<bool> layers_with_experts(const Reader& read, const Config& c, const DenseDefaults& dense) {
  const auto listed = c.gguf ? std::nullopt : read.file().integer_list(read.key("", "moe_layers"));
  if (!listed) {
    std::vector<bool> with = read_dense_layers(read, c, dense);
    with.flip();
    return with;
  }
  // The interval is only recorded for the GGUF file. It may be 0, in models without experts.
  const std::int64_t step = read.notes() ? read.file().integer(read.key("", dense.step_key)).value_or(1) : 0;
  if (step >= 1) read.gguf_says("interleave_moe_layer_step", step);
  const auto last = static_cast<std::int64_t>(c.layers.size()) - 1;
  std::vector<bool> with(c.layers.size());
  for (const std::int64_t layer : *listed) with[static_cast<std::size_t>(read.in_range(layer, 0, last, "moe_layers"))] = true;
  return with;
}

void configure(const Reader& read, Config& c) {
  if (c.gguf) refuse_other_layers(read);
  read_sizes(read, c, {.heads = 40, .kv_heads = 8, .head_dim = 128, .n_ctx = 131072, .eps = 1e-5});
  read_ropes(read, c, {.theta = 500000, .interleaved = true});
  read_attention_bias(read, c);
  read_attention(read, c);
  const DenseDefaults dense{.step_key = "interleave_moe_layer_step"};
  const std::vector<bool> with = layers_with_experts(read, c, dense);
  if (std::ranges::count(with, true) > 0) {
    Mixture mixture = read_mixture(read, c,
                                   {.experts_key = "num_local_experts",
                                    .width_key = "",
                                    .experts = 16,
                                    .chosen = 1,
                                    .score = {.score = RouteScore::sigmoid},
                                    .dense = dense});
    mixture.router.normalised = false;
    mixture.combine = Combine::inputs;
    mixture.shared = shared_expert(mixture, mixture.width);
    set_mixtures(c, mixture, [&](std::size_t layer) { return with[layer]; });
  }
  // intermediate_size in config.json is the width of an expert. Layers without experts have the width intermediate_size_mlp or, in GGUF
  // files, feed_forward_length.
  if (c.gguf) return;
  const std::int32_t width = read.size("", "intermediate_size_mlp", kMaxWidth * 4, 16384);
  read.gguf_says("feed_forward_length", std::int64_t{width});
  read.gguf_lacks({"expert_gating_func"});
  for (Layer& layer : c.layers)
    if (FeedForward* network = layer.if_feed_forward()) network->width = width;
}

}  // namespace

const Family llama4{.name = "llama4",
                    .gguf_names = kGguf,
                    .model_types = kTypes,
                    .prefixes = names::kDecoderPrefixes,
                    .names = kNames,
                    .more_names = names::kLlama,
                    .configure = configure};

}  // namespace pumice::model::families_in_files::llama4
