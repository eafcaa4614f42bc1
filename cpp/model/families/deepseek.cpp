// Models with latent attention (DeepSeek-AI 2024). DeepSeek V2-Lite and V3, Moonlight and GLM-4.7-Flash begin with dense layers, and their
// other layers have experts and shared experts. Youtu-LLM (2026) has no experts.
#include <string>

#include "model/families/names.h"
#include "model/latent_settings.h"
#include "model/mixture_settings.h"

namespace pumice::model::families_in_files::deepseek {
namespace {

constexpr std::string_view kGguf[] = {"deepseek2"};
constexpr std::string_view kTypes2[] = {"deepseek_v2"}, kTypes3[] = {"deepseek_v3"}, kTypesGlm[] = {"glm4_moe_lite"};
constexpr std::string_view kTypesYoutu[] = {"youtu"};
constexpr auto kNames = names::joined(names::kLatent, names::kSharedExperts);
constexpr auto kMoreNames = names::joined(names::kExperts, names::kLlama);

// Throws if a GGUF file was written before llama.cpp's converter split attn_kv_b, or has settings that these models do not have.
void check_file(const Reader& read) {
  if (!read.gguf()) return;
  if (read.file().find("blk.0.attn_kv_b.weight") && !read.file().find("blk.0.attn_k_b.weight"))
    read.unsupported(
        "the file has attn_kv_b and no attn_k_b: it was made before llama.cpp's converter split this tensor (April 2025). "
        "Convert the model again, or take a newer file");
  if (read.has("attention.temperature_scale", ""))
    read.unsupported(read.key("attention.temperature_scale", ""), ": queries that grow with their position are not run in this family");
}

// Throws if config.json's topk_method is not `needed`. "greedy" chooses the experts with the largest scores of all. "noaux_tc" and
// "group_limited_greedy" choose only among the groups of experts with the largest group scores. In "noaux_tc", a bias is added to the
// experts' scores, and a group's score is the sum of the two largest scores in the group. In "group_limited_greedy", a group's score is the
// largest score in the group.
void refuse_other_choice(const Reader& read, const std::string& needed) {
  if (const auto found = read.string("", "topk_method"); found && *found != needed)
    read.unsupported(read.key("", "topk_method"), " \"", *found, "\" is not run in this family; ", needed, " is");
}

// Throws for models that choose groups of experts by the largest score in a group. config.json has a key for this. GGUF files have no such
// key, so the function recognizes DeepSeek V2 (60 layers), which chooses in this way, by its 160 experts.
void refuse_best_of_group(const Reader& read) {
  refuse_other_choice(read, "greedy");
  if (read.gguf() && read.integer("expert_count", "").value_or(0) == 160)
    read.unsupported(read.key("expert_count", ""),
                     " is 160: DeepSeek V2 chooses experts by groups and their best expert, which is not run; "
                     "V2-Lite and V3 are");
}

void configure2(const Reader& read, Config& c) {
  check_file(read);
  refuse_best_of_group(read);
  // norm_topk_prob true is refused, because implementations differ: the models' own code on the hub then leaves out routed_scaling_factor,
  // but transformers ignores norm_topk_prob.
  if (!c.gguf && read.flag("", "norm_topk_prob", false))
    read.unsupported(read.key("", "norm_topk_prob"), " true is not run in this family");
  read_latent_sizes(read, c, {.sizes = {.heads = 32}});
  read_mlp_bias(read, c);
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .experts = 64,
                 .width = 1407,
                 .normalised = false,
                 .gguf_normalised = false,
                 .scale = 1,
                 .shared = SharedDefaults{.count = 2},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace"}});
  read.gguf_says("expert_gating_func", std::int64_t{1});
  if (!read.notes()) return;
  if (const auto groups = read.integer("", "n_group")) read.gguf_says("expert_group_count", *groups);
  if (const auto kept = read.integer("", "topk_group")) read.gguf_says("expert_group_used_count", *kept);
  read.gguf_lacks({"expert_weights_norm"});
}

// Records that the GGUF file has no key expert_weights_norm if the experts' weights are not divided by their sum.
void say_norm(const Reader& read) {
  if (!read.flag("", "norm_topk_prob", true)) read.gguf_lacks({"expert_weights_norm"});
}

void configure3(const Reader& read, Config& c) {
  check_file(read);
  refuse_other_choice(read, "noaux_tc");
  read_latent_sizes(read, c, {.sizes = {.heads = 128, .n_ctx = 4096}});
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .experts = 256,
                 .chosen = 8,
                 .width = 2048,
                 .normalised = true,
                 .gguf_normalised = false,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 8,
                 .kept = 4,
                 .scale = 2.5,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.count = 1},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 3}});
  say_norm(read);
}

void configure_glm(const Reader& read, Config& c) {
  for (const char* key : {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"})
    if (const double part = read.number("", key).value_or(1); part != 1) read.unsupported(read.key("", key), " is ", part, "; 1 is needed");
  read_latent_sizes(read, c, {.sizes = {.heads = 20, .n_ctx = 202752, .eps = 1e-5}, .q_rank = 768, .plain_dim = 192, .value_dim = 256});
  read_mixtures(read, c,
                {.experts_key = "n_routed_experts",
                 .experts = 64,
                 .chosen = 4,
                 .width = 1536,
                 .normalised = true,
                 .score = {.score = RouteScore::sigmoid},
                 .choice_bias = true,
                 .groups = 1,
                 .scale = 1.8,
                 .floor = 1e-20f,
                 .shared = SharedDefaults{.count = 1},
                 .dense = DenseDefaults{.first_key = "first_k_dense_replace", .first = 1, .types_key = "mlp_layer_types"}});
  read.gguf_says(kArchitecture, std::string(kGguf[0]));
  say_norm(read);
}

void configure_youtu(const Reader& read, Config& c) {
  check_file(read);
  read_latent_sizes(read, c, {.sizes = {.heads = 16, .n_ctx = 131072}});
  read.gguf_says("leading_dense_block_count", static_cast<std::int64_t>(c.layers.size()));
  read.gguf_says("expert_shared_count", std::int64_t{0});
  read.gguf_says("expert_feed_forward_length", std::int64_t{c.layers.front().feed_forward().width});
}

// The GGUF files of all these families have the same architecture name. of_youtu() recognizes Youtu-LLM, which has no experts. of_v2()
// recognizes V2, whose experts have no bias for their choice. Files of V3 and GLM-4.7-Flash need not be told apart.
bool of_youtu(const Reader& read) { return !read.gguf() || read.integer("expert_count", "").value_or(0) == 0; }
bool of_v2(const Reader& read) {
  if (!read.gguf()) return true;
  const std::int64_t said = read.integer("expert_gating_func", "").value_or(0);
  return !of_youtu(read) && said != 2 && (said == 1 || read.integer("vocab_size", "").value_or(0) != 154880);
}

}  // namespace

const Family deepseek_v2{.name = "deepseek_v2",
                         .gguf_names = kGguf,
                         .model_types = kTypes2,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNames,
                         .more_names = kMoreNames,
                         .configure = configure2,
                         .claims = of_v2};

const Family deepseek_v3{.name = "deepseek_v3",
                         .gguf_names = kGguf,
                         .model_types = kTypes3,
                         .prefixes = names::kDecoderPrefixes,
                         .names = kNames,
                         .more_names = kMoreNames,
                         .configure = configure3};

const Family glm4_moe_lite{.name = "glm4_moe_lite",
                           .model_types = kTypesGlm,
                           .prefixes = names::kDecoderPrefixes,
                           .names = kNames,
                           .more_names = kMoreNames,
                           .configure = configure_glm};

const Family youtu{.name = "youtu",
                   .gguf_names = kGguf,
                   .model_types = kTypesYoutu,
                   .prefixes = names::kDecoderPrefixes,
                   .names = kNames,
                   .more_names = names::kLlama,
                   .configure = configure_youtu,
                   .claims = of_youtu};

}  // namespace pumice::model::families_in_files::deepseek
