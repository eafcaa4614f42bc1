#include "model/config.h"

#include <algorithm>
#include <array>

#include "model/reader.h"

namespace pumice::model {
namespace {

const Family& family_of(const Reader& read, bool assistant) {
  const std::string name = read.gguf() ? read.text("general.architecture") : read.text("model_type");
  const Family* draft = find_assistant(name, read.gguf());
  if (draft && !assistant)
    read.unsupported("this is an assistant, which guesses tokens for a ", draft->assists,
                     " and does not run alone: give its path to "
                     "that model as load(..., mtp=path)");
  if (draft) return *draft;
  if (assistant) read.unsupported("\"", name, "\" is no assistant that pumice runs beside a model; there are ", known_assistants());
  if (const Family* family = find_family(name, read)) return *family;
  const auto half = read.gguf() ? std::nullopt : read.file().string("text_config.model_type");  // a multimodal model's language model
  if (const Family* family = half ? find_family(*half, read) : nullptr) return *family;
  const char* key = read.gguf() ? "general.architecture" : "model_type";
  read.unsupported(key, ": architecture \"", name, "\" is not known; this version runs ", known_families());
}

// Throws if another library has quantized the weights in a way that pumice cannot load. MXFP4 is accepted only in families that have tensor
// names ending with "_blocks".
void refuse_other_quantization(const Reader& read, const Family& family) {
  if (read.gguf() || !read.file().scheme().empty()) return;
  if (!(read.object("quantization_config") || read.object(read.key("", "quantization_config")))) return;
  const std::string method = read.file().string("quantization_config.quant_method").value_or("a method of another library");
  const auto blocks = [](const TensorName& name) { return name.safetensors.ends_with("_blocks"); };
  if (method == "mxfp4" && std::ranges::any_of(family.names, blocks)) return;
  read.unsupported("its weights are quantized by ", method,
                   "; pumice reads safetensors of F32, F16 and BF16, those that GPTQ, AWQ, compressed-tensors, FP8, ModelOpt "
                   "(NVFP4), bitsandbytes and MLX packed, MXFP4 of gpt-oss, and every GGUF format");
}

// Throws if a GGUF file has a number of experts but the family has no mixture of experts.
void refuse_experts(const Reader& read, const Config& c) {
  const std::int64_t said = read.gguf() ? read.integer("expert_count", "").value_or(0) : 0;
  if (said == 0 || std::ranges::any_of(c.layers, [](const Layer& l) { return l.if_mixture() != nullptr; })) return;
  read.unsupported(read.key("expert_count", ""), " is ", said, ": a mixture of experts is not run in the family ", c.family->name);
}

// Makes attention bidirectional if the file has a key that asks for it. Decoders that were trained with bidirectional attention have this
// key (gte-Qwen2).
void read_mask(const Reader& read, Config& c) {
  const std::string where = read.key("attention.causal", "is_causal");
  const bool causal = c.causal();
  if (read.flag("attention.causal", "is_causal", causal) == causal) return;
  if (!causal) read.unsupported(where, " true is not run for ", c.family->name);
  for (Layer& layer : c.layers) {
    Attention* a = layer.if_attention();
    if (layer.if_recurrent() || layer.if_short_conv() || layer.if_latent_attention())
      read.unsupported(where, " false is not run for ", c.family->name);
    if (!a) continue;
    if (a->window > 0)
      read.unsupported(where, " false beside a window of ", a->window, ": where such a window of ", c.family->name, " ends is not known");
    a->causal = false;
  }
}

// Throws if config.json asks for bidirectional attention, but the model would run with causal attention, because its family does not read
// this key. The value "vision" is accepted, because it concerns only the tokens of images.
void refuse_unread_mask(const Reader& read, const Config& c) {
  const std::string where = read.key("", "use_bidirectional_attention");
  const files::Value* said = c.gguf ? nullptr : read.file().value(where);
  if (!said || !c.causal() || std::holds_alternative<std::monostate>(*said)) return;
  if (const auto* flag = std::get_if<bool>(said); flag && !*flag) return;
  const auto* text = std::get_if<std::string>(said);
  if (text && *text == "vision") return;
  read.unsupported(where, text ? str(" \"", *text, "\"") : "", " (attention in both directions) is not run for ", c.family->name);
}

// is_reranker() and pooling_of() read pooling_type from GGUF files, a value of llama.cpp's enum llama_pooling_type: 0 none, 1 mean, 2 cls,
// 3 last, 4 rank. A decoder with the value rank is a reranker.
bool is_reranker(const Reader& read) { return read.gguf() && read.integer("pooling_type", "").value_or(0) == 4; }
std::optional<PoolKind> pooling_of(const Reader& read) {
  constexpr std::array kinds = {PoolKind::mean, PoolKind::cls, PoolKind::last};
  const std::int64_t said = read.gguf() ? read.integer("pooling_type", "").value_or(0) : 0;
  if (said < 1 || said > 3) return std::nullopt;
  return kinds[static_cast<std::size_t>(said - 1)];
}

// Throws if config.json has a position_embedding_type that the family does not run.
void refuse_other_positions(const Reader& read, const Config& c) {
  const std::string kind = read.gguf() ? "absolute" : read.string("", "position_embedding_type").value_or("absolute");
  const bool turned = kind == "rope" || kind == "rotary";
  const bool none = kind == "nope" && c.ropes.empty() && c.alibi_slopes.empty() && !c.learned_positions;
  if (kind == "absolute" || none || (turned && !c.ropes.empty()) || (kind == "alibi" && !c.alibi_slopes.empty())) return;
  read.unsupported("position_embedding_type \"", kind,
                   "\" is not run; known are absolute, and those of rope, rotary, alibi and nope that the family has");
}

// Returns true if the file's classifier labels tokens and not texts. The class name in config.json decides this, because both kinds of
// classifiers may have the same tensors.
bool labels_tokens(const Reader& read) {
  const files::Value* classes = read.gguf() ? nullptr : read.file().value("architectures");  // ignored if it is not a list of strings
  const auto* names = classes ? std::get_if<files::StringList>(classes) : nullptr;
  return names && names->size() > 0 && std::string((*names)[0]).ends_with("ForTokenClassification");
}

// Sets `head` for a classifier that labels tokens. In most families such a classifier is only a matrix and its bias, without the dense
// layer of a classifier of texts.
void read_token_classifier(const Reader& read, ClassifierHead& head) {
  if (labels_tokens(read)) head.what = Classifies::tokens;
  if (head.what != Classifies::tokens) return;
  head.difference = false;
  if (head.dense == DenseBefore::texts) head.dense = DenseBefore::none;
  head.bias = read.flag("", "token_classification_bias", true);
}

}  // namespace

bool Config::causal() const {
  return std::ranges::all_of(layers, [](const Layer& l) {
    return (!l.if_attention() || l.if_attention()->causal) && (!l.if_short_conv() || l.if_short_conv()->causal);
  });
}

const Attention* Config::first_attention() const {
  const auto first = std::ranges::find_if(layers, [](const Layer& l) { return l.if_attention() != nullptr; });
  return first == layers.end() ? nullptr : first->if_attention();
}

const RelativePlaces* Config::places() const {
  const Attention* a = first_attention();
  return a && a->places ? &*a->places : nullptr;
}

std::size_t Config::cache_of(std::size_t layer) const {
  const Attention* a = this->layer(layer).if_attention();
  return a && a->kv_from ? a->kv_from->layer : layer;
}

Config read_config(const files::ModelFile& file, bool assistant, GgufNotes* notes) {
  const Reader plain(file, notes);
  Config c;
  c.family = &family_of(plain.quiet(), assistant);
  c.gguf = plain.gguf();
  const Reader read(plain, c.family->keys);
  refuse_other_quantization(read, *c.family);
  c.family->configure(read, c);
  refuse_experts(read, c);
  refuse_other_positions(read, c);
  read_mask(read.quiet(), c);
  refuse_unread_mask(read, c);
  if (!c.causal()) read.gguf_says("attention.causal", false);
  // A decoder's classifier reads the row of the last token, and has no bias. The classifier of Qwen3-Reranker has two labels, "yes" and
  // "no", and the score of a text is the difference of the two logits. Families with head_transform have set `classifier` themselves.
  if (c.has_head && !c.head_transform) c.classifier = {.pooling = PoolKind::last, .bias = false, .difference = is_reranker(read)};
  read_token_classifier(read, c.classifier);
  if (const auto said = pooling_of(read)) c.pooling = said;
  return c;
}

namespace {
constexpr std::pair<std::string_view, PoolKind> kPoolings[] = {
    {"mean", PoolKind::mean},
    {"cls", PoolKind::cls},
    {"last", PoolKind::last},
    {"max", PoolKind::max},
    {"mean_sqrt_len", PoolKind::mean_sqrt_len},
    {"weighted_mean", PoolKind::weighted_mean},
};
}

PoolKind pooling_from_name(const std::string& name) {
  for (const auto& [known, kind] : kPoolings) {
    if (known == name) return kind;
  }
  fail(ErrorKind::invalid_argument, "pooling=\"", name, "\" is not known; there are mean, cls, last, max, mean_sqrt_len and weighted_mean");
}

std::string_view name(PoolKind kind) {
  for (const auto& [known, pool] : kPoolings) {
    if (pool == kind) return known;
  }
  return "unknown";
}

}  // namespace pumice::model
