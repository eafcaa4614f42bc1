// Qwen 3.5 and 3.6, dense, and the language models of their multimodal models (Qwen Team 2026). Three of four layers have a gated delta
// rule (Yang, Kautz and Hatamizadeh 2024). The others have attention with a gate on its output, and a rope that rotates a quarter of each
// head. The rope's sections rotate tokens of text as plain rope does. Qwen 3.5 and 3.6 MoE have a mixture of experts in each layer, with a
// shared expert whose hidden values are multiplied by a sigmoid. Qwen3-Next (2025), an earlier model, has the same layers with other tensor
// names and another order of rows.
#include "model/families/names.h"
#include "model/mixture_settings.h"
#include "model/rope.h"
#include "model/scan_settings.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::qwen3_5 {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"qwen35"}, kTypes[] = {"qwen3_5_text", "qwen3_5"};
constexpr std::string_view kFolded[] = {"DeltaRule::tiled"};
constexpr std::string_view kGgufMoe[] = {"qwen35moe"}, kTypesMoe[] = {"qwen3_5_moe_text", "qwen3_5_moe"};
constexpr std::string_view kGgufNext[] = {"qwen3next"}, kTypesNext[] = {"qwen3_next"};
constexpr TensorName kCommonNames[] = {
    {q, "blk.{}.attn_q", "layers.{}.self_attn.q_proj", Fused::q_gate_by_head},
    {attn_gate, "blk.{}.attn_q", "layers.{}.self_attn.q_proj", Fused::q_gate_by_head},
    {ffn_norm, "blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"},
    {scan_q_taps, "blk.{}.ssm_conv1d", "layers.{}.linear_attn.conv1d", Fused::taps_qkv},
    {scan_k_taps, "blk.{}.ssm_conv1d", "layers.{}.linear_attn.conv1d", Fused::taps_qkv},
    {scan_v_taps, "blk.{}.ssm_conv1d", "layers.{}.linear_attn.conv1d", Fused::taps_qkv},
    {scan_step_bias, "blk.{}.ssm_dt.bias", "layers.{}.linear_attn.dt_bias", Fused::no, false, Bare::both},
    {scan_rate, "blk.{}.ssm_a", "layers.{}.linear_attn.A_log", Fused::no, false, Bare::both},
    {scan_norm, "blk.{}.ssm_norm", "layers.{}.linear_attn.norm"},
    {scan_out, "blk.{}.ssm_out", "layers.{}.linear_attn.out_proj"},
    {draft_embedding_norm, "blk.{}.nextn.enorm", "mtp.pre_fc_norm_embedding"},
    {draft_hidden_norm, "blk.{}.nextn.hnorm", "mtp.pre_fc_norm_hidden"},
    {draft_join, "blk.{}.nextn.eh_proj", "mtp.fc"},
    {draft_norm, "blk.{}.nextn.shared_head_norm", "mtp.norm"},
};
constexpr TensorName kProducts[] = {
    {scan_q, "blk.{}.attn_qkv", "layers.{}.linear_attn.in_proj_qkv", Fused::scan_qkv},
    {scan_k, "blk.{}.attn_qkv", "layers.{}.linear_attn.in_proj_qkv", Fused::scan_qkv},
    {scan_v, "blk.{}.attn_qkv", "layers.{}.linear_attn.in_proj_qkv", Fused::scan_qkv},
    {scan_gate, "blk.{}.attn_gate", "layers.{}.linear_attn.in_proj_z"},
    {scan_step, "blk.{}.ssm_alpha", "layers.{}.linear_attn.in_proj_a"},
    {scan_beta, "blk.{}.ssm_beta", "layers.{}.linear_attn.in_proj_b"},
};
// Converters to GGUF split the folder's tensor that has q, k, v and the gate. Early converters wrote it whole, as ssm_in, with its rows in
// the same order.
constexpr TensorName kProductsNext[] = {
    {scan_q, "blk.{}.attn_qkv", "", Fused::scan_qkv},
    {scan_k, "blk.{}.attn_qkv", "", Fused::scan_qkv},
    {scan_v, "blk.{}.attn_qkv", "", Fused::scan_qkv},
    {scan_gate, "blk.{}.attn_gate", ""},
    {scan_q, "blk.{}.ssm_in", "layers.{}.linear_attn.in_proj_qkvz", Fused::scan_qkv_gate_by_head},
    {scan_k, "blk.{}.ssm_in", "layers.{}.linear_attn.in_proj_qkvz", Fused::scan_qkv_gate_by_head},
    {scan_v, "blk.{}.ssm_in", "layers.{}.linear_attn.in_proj_qkvz", Fused::scan_qkv_gate_by_head},
    {scan_gate, "blk.{}.ssm_in", "layers.{}.linear_attn.in_proj_qkvz", Fused::scan_qkv_gate_by_head},
    {scan_beta, "blk.{}.ssm_ba", "layers.{}.linear_attn.in_proj_ba", Fused::scan_beta_step_by_head},
    {scan_step, "blk.{}.ssm_ba", "layers.{}.linear_attn.in_proj_ba", Fused::scan_beta_step_by_head},
};
constexpr auto kNames = names::joined(kCommonNames, kProducts);
constexpr auto kNamesMoe = names::joined(kCommonNames, kProducts, names::kExperts);
constexpr auto kNamesNext = names::joined(kCommonNames, kProductsNext, names::kExperts);
constexpr TypeName kLayerTypes[] = {{"linear_attention", "linear_attention"}, {"full_attention", "full_attention"}};

// Returns one flag per layer, true if the layer is recurrent. A file has a list of layer types, or a number n, which means that every n-th
// layer has attention.
std::vector<bool> recurrent_layers(const Reader& read, std::size_t count) {
  read.gguf_says("full_attention_interval", read.integer("", "full_attention_interval").value_or(4));
  std::vector<bool> recurrent;
  for (const std::string_view type : read_layer_types(read, count, kLayerTypes)) recurrent.push_back(type == "linear_attention");
  if (!recurrent.empty()) read.gguf_says("attention.recurrent_layers", recurrent);
  const std::string where = read.key("attention.recurrent_layers", "");
  if (read.gguf() && read.file().has(where)) {
    const auto* flags = std::get_if<std::vector<bool>>(read.file().value(where));
    if (!flags || flags->size() < count)
      read.unsupported(where, " is no list of flags with one entry for each of ", count, " layers, which is needed");
    recurrent.assign(flags->begin(), flags->begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (!recurrent.empty()) return recurrent;
  const std::size_t every = static_cast<std::size_t>(read.size("full_attention_interval", "full_attention_interval", kMaxLayers, 4));
  for (std::size_t i = 0; i < count; ++i) recurrent.push_back((i + 1) % every != 0);
  return recurrent;
}

// Reads the settings that all families of this source file share. Afterwards the networks of all layers are dense, also in models with
// experts.
void read_layers(const Reader& read, Config& c, const SizeDefaults& defaults) {
  c.norm_offset = !c.gguf;  // folders store w - 1 for a norm's weight w, and converters to GGUF add the 1
  read_sizes(read, c, defaults);
  Recurrent delta = read_delta(read, c, {.heads = 32, .key_heads = 16, .key_dim = 128, .value_dim = 128});
  delta.activation = c.layers.front().feed_forward().activation;
  const std::vector<bool> recurrent = recurrent_layers(read, c.layers.size());
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    if (recurrent[i]) {
      c.layers[i].mixer = delta;
      continue;
    }
    Attention& a = c.layers[i].attention();
    a.qk_norm = QkNorm::head;
    a.gate = OutputGate{};
  }
  read_ropes(read, c, {.partial = 0.25});
  if (const std::int64_t draft = read.integer("", "mtp_num_hidden_layers").value_or(0); draft != 0) say_draft_layers(read, c, draft);
  read_attention_bias(read, c);
  for (Layer& layer : c.layers)
    // q and the gate are one tensor, q_proj, so that both or neither have a bias.
    if (Attention* a = layer.if_attention()) a->gate->bias = a->qkv_bias;
}

void read_layers_3_5(const Reader& read, Config& c, const SizeDefaults& defaults) {
  if (!read.flag("", "attn_output_gate", true))
    read.unsupported(read.key("", "attn_output_gate"), " false (attention without a gate) is not run");
  read_layers(read, c, defaults);
  say_sections(read, {11, 11, 10});
  for (Layer& layer : c.layers)
    if (Recurrent* r = layer.if_recurrent()) r->delta->tiled = c.gguf && c.family->tiled_in_gguf;
}

void configure(const Reader& read, Config& c) {
  read_layers_3_5(read, c, {.heads = 16, .kv_heads = 4, .head_dim = 256, .n_ctx = 32768});
  read_draft(read, c);
}

void configure_moe(const Reader& read, Config& c) {
  // Files need not have the width of a dense network, because no layer has one. `ffn_factor` only prevents an error about the missing key.
  read_layers_3_5(read, c, {.heads = 16, .kv_heads = 2, .head_dim = 256, .ffn_factor = 1, .n_ctx = 32768});
  Mixture mixture = read_mixture(read, c, {.experts = 256, .chosen = 8, .width = 512});
  mixture.shared = read_opened_expert(read, mixture, 512);
  read.gguf_lacks({"feed_forward_length"});
  set_mixtures(c, mixture, [](std::size_t) { return true; });
  read_draft(read, c);
}

void configure_next(const Reader& read, Config& c) {
  read_layers(read, c, {.heads = 16, .kv_heads = 2, .head_dim = 256, .n_ctx = 32768});
  Mixture mixture = read_mixture(read, c, {.experts = 512, .chosen = 10, .width = 512, .normalised = true});
  mixture.shared = read_opened_expert(read, mixture, 512);
  read.gguf_lacks({"expert_weights_norm"});
  set_sparse_layers(read, c, mixture);
  read_draft(read, c);
}

}  // namespace

const Family qwen3_5{.name = "qwen3_5",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure,
                     .tiled_in_gguf = true,
                     .folded_in_gguf = kFolded};

const Family qwen3_5_moe{.name = "qwen3_5_moe",
                         .gguf_names = kGgufMoe,
                         .model_types = kTypesMoe,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNamesMoe,
                         .more_names = names::kLlama,
                         .configure = configure_moe,
                         .tiled_in_gguf = true,
                         .folded_in_gguf = kFolded};

const Family qwen3_next{.name = "qwen3_next",
                        .gguf_names = kGgufNext,
                        .model_types = kTypesNext,
                        .prefixes = names::kDecoderPrefixes,
                        .names = kNamesNext,
                        .more_names = names::kLlama,
                        .configure = configure_next};

}  // namespace pumice::model::families_in_files::qwen3_5
