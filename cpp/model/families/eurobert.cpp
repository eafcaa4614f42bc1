// EuroBERT (Boizard et al. 2025) and jina-embeddings-v5 nano have Llama's layers with bidirectional attention. UltraBERT (2026) is a
// EuroBERT with a window in two of three layers. Its rope has one base in layers without a window and another in layers with a window.
#include <algorithm>
#include <vector>

#include "model/families/names.h"
#include "model/rope.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::eurobert {
namespace {

using enum Role;

constexpr std::string_view kGguf[] = {"eurobert"}, kTypes[] = {"eurobert"};
constexpr TensorName kNames[] = {{head_dense, "cls", "dense"}, {classifier, "cls.output", "classifier"}, {mlm_decoder, "", "lm_head"}};

// Reads the classifier of EuroBertForSequenceClassification. The classifier computes the mean of the logits of all rows (late), the logits
// of the mean of all rows (mean), or the logits of the first row (bos).
ClassifierHead read_head(const Reader& read) {
  ClassifierHead head{.dense = DenseBefore::texts, .activation = Activation::gelu};
  const std::string pooling = read.string("", "classifier_pooling").value_or("late");
  if (pooling != "late" && pooling != "mean" && pooling != "bos")
    read.unsupported("classifier_pooling \"", pooling, "\" is not known for EuroBERT; there are late, mean and bos");
  head.pooling = pooling == "bos" ? PoolKind::cls : PoolKind::mean;
  if (pooling == "late") head.what = Classifies::late;
  return head;
}

void configure(const Reader& read, Config& c) {
  c.has_head = false;
  c.classifier = read_head(read);
  read_sizes(read, c, {.n_ctx = 8192, .eps = 1e-5});
  read_ropes(read, c, {.theta = 250000});
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().causal = false;
  if (!c.gguf) c.mlm_head = MlmHead{.width = c.hidden_size, .dense = false, .bias = read.flag("", "mlp_bias", false)};
}

constexpr std::string_view kUltraTypes[] = {"ultrabert"}, kUltraPrefixes[] = {"model.", "ultrabert.", ""};
constexpr TensorName kUltraNames[] = {{classifier, "", "classifier"}};

// Reads attention_windows, a list that models on the Hugging Face hub have: the window of each layer, or 0 for a layer without one. All
// layers with a window must have the same window.
void read_attention_windows(const Reader& read, Config& c) {
  const std::string where = read.key("", "attention_windows");
  if (!read.has("", "attention_windows") || read.has("", "layer_types")) return;
  const auto windows = read.file().integer_list(where).value_or(std::vector<std::int64_t>{});
  if (windows.size() != c.layers.size())
    read.unsupported(where, " has ", windows.size(), " entries for ", c.layers.size(), " layers; one for each layer is needed");
  const std::int64_t widest = std::ranges::max(windows);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    read.in_range(windows[i], 0, kMaxContext, where);
    if (windows[i] != 0 && windows[i] != widest)
      read.unsupported(where, ": windows of ", windows[i], " and ", widest, " in one model are not run");
    c.layers[i].windowed = windows[i] > 0;
    c.layers[i].attention().window = windows[i] < c.n_ctx ? static_cast<std::int32_t>(windows[i]) : 0;
  }
}

// Reads the ropes. In models on the Hugging Face hub, rope_theta is a list with one base per layer. Other files have one base for each kind
// of layer.
void read_ultra_ropes(const Reader& read, Config& c) {
  const auto bases = read.has("", "rope_parameters") ? std::nullopt : read.file().number_list(read.key("", "rope_theta"));
  if (!bases) return read_ropes(read, c, {.theta = 2560000, .window_theta = 10000});
  const std::string where = read.key("", "rope_theta");
  if (bases->size() != c.layers.size())
    read.unsupported(where, " has ", bases->size(), " entries for ", c.layers.size(), " layers; one for each layer is needed");
  for (const double base : *bases)
    if (!(base > 0 && base < 1e30)) read.bad_number(where, base, "a positive number below 1e30");
  read_layer_ropes(read, c, {}, *bases);
}

void configure_ultra(const Reader& read, Config& c) {
  c.has_head = false;
  const std::string pooling = read.string("", "classifier_pooling").value_or("cls");
  if (pooling != "mean" && pooling != "cls")
    read.unsupported("classifier_pooling \"", pooling, "\" is not known for UltraBERT; there are cls and mean");
  c.classifier.pooling = pooling == "mean" ? PoolKind::mean : PoolKind::cls;
  read_sizes(read, c, {.n_ctx = 32768});
  read_windows(read, c, {.window = 128, .full_every = 3});
  read_attention_windows(read, c);
  read_ultra_ropes(read, c);
  read_attention_bias(read, c);
  read_mlp_bias(read, c);
  for (Layer& layer : c.layers) layer.attention().causal = false;
}

}  // namespace

const Family eurobert{.name = "eurobert",
                      .gguf_names = kGguf,
                      .model_types = kTypes,
                      .prefixes = names::kDecoderPrefixes,
                      .names = kNames,
                      .more_names = names::kLlama,
                      .configure = configure};

const Family ultrabert{.name = "ultrabert",
                       .model_types = kUltraTypes,
                       .prefixes = kUltraPrefixes,
                       .names = kUltraNames,
                       .more_names = names::kLlama,
                       .configure = configure_ultra};

}  // namespace pumice::model::families_in_files::eurobert
