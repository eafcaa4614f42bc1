// Arcee's AFM (2025) is a Llama with squared relu and without a gate. Apertus (Project Apertus 2025) also has no gate. It normalises each
// head of q and k, and its activation is xIELU, which has two learned parameters per layer.
#include <algorithm>
#include <cmath>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::arcee {
namespace {

using enum Role;

constexpr std::string_view kArceeGguf[] = {"arcee"}, kArceeTypes[] = {"arcee"};

void configure_arcee(const Reader& read, Config& c) {
  read_sizes(read, c, {.n_ctx = 4096, .eps = 1e-5, .activation = Activation::relu2});
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.feed_forward().gated = false;
  }
}

constexpr std::string_view kApertusGguf[] = {"apertus"}, kApertusTypes[] = {"apertus"};
constexpr TensorName kApertusNames[] = {
    {attn_norm, "blk.{}.attn_norm", "layers.{}.attention_layernorm"},
    {ffn_norm, "blk.{}.ffn_norm", "layers.{}.feedforward_layernorm"},
};

constexpr std::string_view kXielu[] = {"layers.{}.mlp.act_fn.alpha_p", "layers.{}.mlp.act_fn.alpha_n", "layers.{}.mlp.act_fn.beta",
                                       "layers.{}.mlp.act_fn.eps"};

// Returns the values of xIELU's learned number `name`, one per layer. A GGUF file has a list with one value per layer. A safetensors file
// has one tensor per layer, with a single value.
std::vector<double> learned(const Reader& read, const Config& c, const std::string& name) {
  if (c.gguf) {
    // Unlike other GGUF keys, this key does not begin with the architecture's name.
    const std::string key = "xielu." + name;
    const auto list = read.file().number_list(key);
    if (!list) read.missing(key);
    if (list->size() != c.layers.size())
      read.unsupported(key, " has ", list->size(), " entries for ", c.layers.size(), " layers; one for each is needed");
    return *list;
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    const std::string at = str("layers.", i, ".mlp.act_fn.", name);
    const files::TensorInfo* tensor = nullptr;
    for (const std::string_view prefix : names::kDecoderPrefixes) {
      if (!tensor) tensor = read.file().find(str(prefix, at));
    }
    if (!tensor) read.missing(str(names::kDecoderPrefixes[0], at));
    // The tensor must be a scalar or a list of one number.
    if (!std::ranges::all_of(tensor->shape, [](std::int64_t size) { return size == 1; }))
      read.unsupported(tensor->name, " has more than one number; one is needed");
    values.push_back(read.file().read_floats(*tensor).front());
  }
  read.gguf_says("xielu." + name, values);
  return values;
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// Reads the parameters of xIELU (Huang and Schlag 2024). Files have p and n, from which the parameters are computed as in transformers:
// alpha_p = softplus(p), alpha_n = beta + softplus(n).
void read_xielu(const Reader& read, Config& c) {
  const auto p = learned(read, c, "alpha_p"), n = learned(read, c, "alpha_n");
  const auto beta = learned(read, c, "beta"), eps = learned(read, c, "eps");
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    if (beta[i] != 0.5) read.unsupported("xielu with beta ", beta[i], " in layer ", i, " is not run; 0.5 is");
    if (!(eps[i] <= 0 && eps[i] >= -1e-5)) read.unsupported("xielu with eps ", eps[i], " in layer ", i, " is not run; -1e-6 is");
    c.layers[i].feed_forward().xielu = {.alpha_p = static_cast<float>(softplus(p[i])),
                                        .alpha_n = static_cast<float>(beta[i] + softplus(n[i]))};
  }
}

void configure_apertus(const Reader& read, Config& c) {
  read_sizes(read, c, {.n_ctx = 65536, .eps = 1e-5, .activation = Activation::xielu});
  if (!c.gguf && !read.has("", "rope_parameters") && !read.has("", "rope_scaling")) read.missing(read.key("", "rope_scaling"));
  read_ropes(read, c, {.theta = 12000000});
  if (c.layers.front().feed_forward().activation == Activation::xielu) read_xielu(read, c);
  read_attention_bias(read, c);
  for (Layer& layer : c.layers) {
    layer.feed_forward().gated = false;
    layer.attention().qk_norm = QkNorm::head;
  }
}

}  // namespace

const Family arcee{.name = "arcee",
                   .gguf_names = kArceeGguf,
                   .model_types = kArceeTypes,
                   .prefixes = names::kDecoderPrefixes,
                   .names = names::kLlama,
                   .configure = configure_arcee,
                   .pairs_in_gguf = true};

const Family apertus{.name = "apertus",
                     .gguf_names = kApertusGguf,
                     .model_types = kApertusTypes,
                     .prefixes = names::kDecoderPrefixes,
                     .names = kApertusNames,
                     .more_names = names::kLlama,
                     .configure = configure_apertus,
                     .read_by_configure = kXielu};

}  // namespace pumice::model::families_in_files::arcee
