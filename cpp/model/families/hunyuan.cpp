// Hunyuan 0.5B to 7B, dense (Tencent 2025): a Llama that normalises each head of q and k after rope.
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::hunyuan {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"hunyuan-dense"}, kTypes[] = {"hunyuan_v1_dense"};
constexpr TensorName kNames[] = {
    {q_norm, "blk.{}.attn_q_norm", "layers.{}.self_attn.query_layernorm"},
    {k_norm, "blk.{}.attn_k_norm", "layers.{}.self_attn.key_layernorm"},
};

// Returns the factor by which the base of the rope is multiplied. A "dynamic" scaling with an alpha does not depend on the length of a
// text: the factor is alpha^(d / (d - 2)), where d is head_dim. GGUF files store the multiplied base.
double stretch(const Reader& read, std::int32_t head_dim) {
  if (read.gguf()) return 1;
  for (const std::string at : {"rope_parameters", "rope_scaling"}) {
    if (!read.number("", at + ".alpha")) continue;
    return std::pow(read.positive("", at + ".alpha"), static_cast<double>(head_dim) / (head_dim - 2));
  }
  return 1;
}

void configure(const Reader& read, Config& c) {
  read_sizes(read, c, {.eps = 1e-5});
  read_ropes(read, c, {.stretch = stretch(read, c.layers.front().attention().head_dim)});
  if (read.flag("", "use_cla", false)) read.unsupported("use_cla (keys and values of another layer) is not run");
  if (!read.flag("", "use_qk_norm", true)) read.unsupported("use_qk_norm false is not run");
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().qk_norm = QkNorm::head_after_rope;
}

}  // namespace

const Family hunyuan{.name = "hunyuan",
                     .gguf_names = kGguf,
                     .model_types = kTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kNames,
                     .more_names = names::kLlama,
                     .configure = configure};

}  // namespace pumice::model::families_in_files::hunyuan
