// Nanbeige 4.2 3B (Nanbeige Lab 2026) is a Llama whose rows pass through all layers num_loops times. Each pass has its own keys and values.
// Unless skip_loop_final_norm is true, rows are normalised between two passes, with the weights of the final norm.
#include "core/checked.h"
#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::nanbeige {
namespace {

constexpr std::string_view kGguf[] = {"nanbeige"}, kTypes[] = {"nanbeige"};

void configure(const Reader& read, Config& c) {
  read_sizes(read, c);
  read_ropes(read, c, {});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  const std::vector<Layer> once = c.layers;
  c.loops = Loops{static_cast<std::size_t>(read.size("num_loops", "num_loops", kMaxLayers / static_cast<std::int32_t>(once.size())))};
  const bool norm = !read.flag("skip_loop_final_norm", "skip_loop_final_norm", false);
  for (std::size_t loop = 1; loop < c.loops->count; ++loop) {
    if (norm) c.layers.back().tail = Tail{.final_norm = true};
    c.layers.insert(c.layers.end(), once.begin(), once.end());
  }
}

}  // namespace

const Family nanbeige{.name = "nanbeige",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = names::kLlama,
                      .configure = configure,
                      .pairs_in_gguf = true};

}  // namespace pumice::model::families_in_files::nanbeige
