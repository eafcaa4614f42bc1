#include "model/assistant.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "files/model_file.h"

namespace pumice::model {
namespace {

template <class... Parts>
[[noreturn]] void unfit(const files::ModelFile& file, const Description& d, const Parts&... parts) {
  throw Error(ErrorKind::unsupported_model, str(file.path(), ": this assistant does not fit ", d.files.front()->path(), ": ", parts...))
      .in_file(file.path());
}

// Returns the index of the layer of the model that computes the keys and values for `layer`, a layer of the assistant. This is the model's
// last such layer of the same kind (with or without a window). Returns the number of the model's layers if there is none.
std::size_t source_of(const Config& model, const Layer& layer) {
  for (std::size_t i = model.layers.size(); i-- > 0;) {
    const Attention* a = model.layers[i].if_attention();
    if (a && !a->kv_from && model.layers[i].windowed == layer.windowed) return i;
  }
  return model.layers.size();
}

// Returns true if both tables rotate a head in the same way. Frequencies may differ a little, because one table may come from a GGUF file.
// Such a file has almost 0 in place of a frequency of 0, and may round the other frequencies in another way.
bool turn_alike(const RopeTable& a, const RopeTable& b) {
  RopeTable others = a;
  others.inv_freq = b.inv_freq;
  const auto near = [](float x, float y) { return std::abs(x - y) <= 1e-6f * std::max(std::abs(x), std::abs(y)) + 1e-12f; };
  return others == b && std::ranges::equal(a.inv_freq, b.inv_freq, near);
}

void find_sources(const files::ModelFile& file, const Description& d, Config& c) {
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    Attention& a = c.layers[i].attention();
    const char* kind = c.layers[i].windowed ? "with a window" : "without a window";
    const std::size_t source = source_of(d.config, c.layers[i]);
    if (source == d.config.layers.size()) unfit(file, d, "its layer ", i, " is one ", kind, ", and the model has none");
    const Attention& from = d.config.layers[source].attention();
    if (from.head_dim != a.head_dim || from.kv_heads != a.kv_heads)
      unfit(file, d, "its layer ", i, " reads ", a.kv_heads, " heads of ", a.head_dim, ", and the model's last layer ", kind, " keeps ",
            from.kv_heads, " of ", from.head_dim);
    if (from.window != a.window)
      unfit(file, d, "its layer ", i, " has a window of ", a.window, ", the model's layers one of ", from.window);
    if (a.window == 1) unfit(file, d, "a window of 1 holds nothing before a position");
    if (!turn_alike(d.config.ropes[static_cast<std::size_t>(from.rope)], c.ropes[static_cast<std::size_t>(a.rope)]))
      unfit(file, d, "its layer ", i, " has other frequencies of rope than the model's layers ", kind);
    // A draft token attends as if it were one position earlier, because the caches have no key of the token itself (Segment::ahead). The
    // window is made one position shorter, so that it still begins at the same position.
    if (a.window > 0) --a.window;
    a.kv_from = KvFrom{.layer = source};
  }
}

}  // namespace

void add_assistant(Description& d, std::shared_ptr<const files::ModelFile> file, const DescribeOptions& options) {
  const DescribeOptions own{.quantize = options.quantize, .compute = options.compute, .allow_unread = options.allow_unread};
  auto assistant = std::make_shared<Description>(describe_assistant(file, own, d));
  Config& c = assistant->config;
  if (d.config.family->name != c.family->assists)
    unfit(*file, d, "it is one for a ", c.family->assists, ", and the model is a ", d.config.family->name);
  if (!d.config.has_head) unfit(*file, d, "the model is loaded without an output head");
  if (!c.has_head) unfit(*file, d, "it has no output head");
  if (c.backbone->hidden_size != d.config.hidden_size)
    unfit(*file, d, "it takes rows of ", c.backbone->hidden_size, " numbers, and those of the model have ", d.config.hidden_size);
  if (assistant->vocab_size != d.vocab_size)
    unfit(*file, d, "it has a vocabulary of ", assistant->vocab_size, " tokens, and the model one of ", d.vocab_size);
  if (!d.sides.empty()) unfit(*file, d, "the model has ", d.sides.front().name().one, " already");
  find_sources(*file, d, c);
  std::set<std::size_t> reads;
  for (const Layer& layer : c.layers) reads.insert(layer.attention().kv_from->layer);
  // Adds the name of the file to the names of the assistant's weights, so that error messages show which file they mean. The model has
  // tensors of the same names.
  for (std::size_t m = d.weights.matrices.size(); m < assistant->weights.matrices.size(); ++m)
    assistant->weights.matrices[m].name = str(file->path(), ": ", assistant->weights.matrices[m].name);
  for (std::size_t v = d.weights.vectors.size(); v < assistant->weights.vectors.size(); ++v)
    assistant->weights.vectors[v].name = str(file->path(), ": ", assistant->weights.vectors[v].name);
  for (const std::string& lacks : assistant->incomplete) d.incomplete.push_back(str("its assistant ", file->path(), " ", lacks));
  d.weights = assistant->weights;
  d.files.push_back(std::move(file));
  d.notes.insert(d.notes.end(), assistant->notes.begin(), assistant->notes.end());
  d.sides.push_back({.kind = SideKind::assistant, .own = std::move(assistant), .reads = {reads.begin(), reads.end()}});
}

}  // namespace pumice::model
