#include "model/settings.h"

#include <algorithm>
#include <cmath>

#include "core/program_check.h"
#include "model/rope.h"

namespace pumice::model {
namespace {

float softcap(const Reader& read, const char* key, double otherwise) {
  if (otherwise == kNoSuchKey) return 0;
  const double cap = read.has(key, key) ? read.number(key, key).value_or(0) : otherwise;  // a null in config.json means no limit
  if (!(cap >= 0 && cap < 1e30)) read.bad_number(read.key(key, key), cap, "0 (none) or a positive number");
  if (cap > 0) read.gguf_says(key, cap);
  return static_cast<float>(cap);
}

// Returns the attention of a layer with `heads` query heads. The caller sets the number of kv heads.
Attention read_attention(const Reader& read, const Config& c, std::int64_t heads, const SizeDefaults& defaults) {
  Attention a;
  a.heads = static_cast<std::int32_t>(heads);
  const std::int64_t head_dim = defaults.head_dim != 0 && !c.gguf ? defaults.head_dim : std::max(1, c.hidden_size / a.heads);
  a.head_dim = read.size("attention.key_length", "head_dim", kMaxValueDim, head_dim);
  if (read.size("attention.value_length", "", kMaxValueDim, a.head_dim) != a.head_dim)
    read.unsupported(read.key("attention.key_length", ""), " is ", a.head_dim,
                     ": heads of keys and of values differ in size, and must not");
  // llama.cpp's converter leaves out sizes that follow from other sizes.
  if (a.head_dim * a.heads == c.hidden_size)
    read.gguf_lacks({"attention.key_length"});
  else
    read.gguf_says("attention.value_length", std::int64_t{a.head_dim});
  const bool stated = read.has("attention.key_length", "head_dim") || head_dim == defaults.head_dim;
  check_head_dim(read, a.head_dim, stated ? "head_dim" : "head_dim (hidden_size / num_attention_heads)");
  const double pre_attention = defaults.query_pre_attn_scalar > 0 && !c.gguf
                                   ? read.positive("", "query_pre_attn_scalar", defaults.query_pre_attn_scalar)
                                   : a.head_dim;
  a.scale = static_cast<float>(1 / std::sqrt(pre_attention));
  a.softcap = softcap(read, "attn_logit_softcapping", defaults.attention_softcap);
  return a;
}

// Returns one number per layer from a GGUF file. The value in the file is a list, or one number for all layers. The result leaves
// out the entries that a list has for layers that predict draft tokens. Returns an empty vector if the file has no such key.
std::vector<std::int64_t> by_layer(const Reader& read, const char* key, std::size_t layers, std::int64_t low, std::int64_t high) {
  auto list = read.per_layer(key, "", static_cast<std::size_t>(layers_of_file(read).count), low, high);
  if (!list.empty()) list.resize(layers);
  return list;
}

constexpr const char* kOwnHeads = "num_attention_heads_per_layer";

// Returns the number of query heads of each layer.
std::vector<std::int64_t> read_heads(const Reader& read, std::size_t layers, const SizeDefaults& defaults) {
  if (defaults.own_heads) {
    auto list =
        read.gguf() ? by_layer(read, "attention.head_count", layers, 1, kMaxHeads) : read.per_layer("", kOwnHeads, layers, 1, kMaxHeads);
    if (!list.empty()) return list;
  }
  // GGUF files have all keys, so the defaults of configuration classes do not apply to them.
  const auto silent = defaults.heads > 0 && !read.gguf() ? std::optional<std::int64_t>(defaults.heads) : std::nullopt;
  return std::vector<std::int64_t>(layers, read.size("attention.head_count", "num_attention_heads", kMaxHeads, silent));
}

// Returns the number of kv heads of each layer. A null in config.json means that there are as many kv heads as heads.
std::vector<std::int64_t> read_kv_heads(const Reader& read, const Config& c, std::size_t layers, std::int32_t heads,
                                        const SizeDefaults& defaults) {
  const std::int32_t otherwise = defaults.kv_heads;
  if (c.gguf) {
    auto list = by_layer(read, "attention.head_count_kv", layers, defaults.some_attend ? 0 : 1, kMaxHeads);
    return list.empty() ? std::vector<std::int64_t>(layers, heads) : list;
  }
  if (otherwise == kNoSuchKey) return std::vector<std::int64_t>(layers, heads);
  const bool says = read.has("", "num_key_value_heads");
  const std::int64_t silent = says || otherwise == 0 ? heads : otherwise;
  return std::vector<std::int64_t>(layers, read.size("", "num_key_value_heads", kMaxHeads, silent));
}

std::vector<std::int64_t> read_ffn_widths(const Reader& read, const Config& c, std::size_t layers, const SizeDefaults& defaults) {
  const std::int32_t factor = defaults.ffn_factor;
  if (c.gguf) {
    auto list = by_layer(read, "feed_forward_length", layers, defaults.some_networks ? 0 : 1, kMaxWidth * 4);
    if (!list.empty()) return list;
  }
  return std::vector<std::int64_t>(layers, read.size("feed_forward_length", "intermediate_size", kMaxWidth * 4,
                                                     factor > 0 ? std::optional(std::int64_t{factor} * c.hidden_size) : std::nullopt));
}

// Returns one flag per layer: 1 if the layer has a window. The file has a text such as "LLLG", which is repeated until all layers have a
// letter. L is a layer with a window, and G a layer without one (EXAONE 4).
std::vector<std::int64_t> window_letters(const Reader& read, const char* key, std::size_t count) {
  const std::string letters = read.text(read.key("", key));
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
    read.unsupported(read.key("", key), " is \"", letters, "\"; a number, or letters L (window) and G (none) are needed");
  std::vector<std::int64_t> flags(count);
  for (std::size_t i = 0; i < count; ++i) flags[i] = letters[i % letters.size()] == 'L';
  return flags;
}

}  // namespace

LayerCount layers_of_file(const Reader& read) {
  const std::string list = read.key("", "layers_block_type");
  if (!read.gguf() && !read.has("", "num_hidden_layers") && read.has("", "layers_block_type")) {
    const auto types = read.file().strings(list).value_or(std::vector<std::string>{});
    const auto count = static_cast<std::int64_t>(types.size());
    read.gguf_says("block_count", count);
    return {list, read.in_range(count, 1, kMaxLayers, str("the number of entries of ", list))};
  }
  return {read.key("block_count", "num_hidden_layers"), read.size("block_count", "num_hidden_layers", kMaxLayers)};
}

std::size_t layer_count(const Reader& read) {
  const std::int64_t all = layers_of_file(read).count;
  const std::string where = read.key("nextn_predict_layers", "");
  return static_cast<std::size_t>(all - read.in_range(read.integer("nextn_predict_layers", "").value_or(0), 0, all - 1, where));
}

std::vector<std::string_view> read_layer_types(const Reader& read, std::size_t count, std::span<const TypeName> names, const char* key) {
  const auto said = read.gguf() ? std::nullopt : read.file().strings(read.key("", key));
  if (!said) return {};
  if (said->size() != count) read.unsupported(key, " has ", said->size(), " entries for ", count, " layers; one for each layer is needed");
  std::vector<std::string_view> types;
  for (const std::string& word : *said) {
    const auto known = std::ranges::find(names, word, &TypeName::in_file);
    if (known == names.end()) {
      std::string all;
      for (const TypeName& name : names) all += (all.empty() ? "" : ", ") + std::string(name.in_file);
      read.unsupported(key, ": layer type \"", word, "\" is not known; there are ", all);
    }
    types.push_back(known->type);
  }
  return types;
}

void check_head_dim(const Reader& read, std::int32_t head_dim, const std::string& where) {
  if (head_dim % 8 != 0) read.unsupported(where, " is ", head_dim, "; it must be a multiple of 8");
}

void check_kv_heads(const Reader& read, const Attention& attention, const std::string& where, const char* heads_key) {
  if (attention.heads % attention.kv_heads == 0) return;
  read.unsupported(read.key("attention.head_count", heads_key), " is ", attention.heads, " and ", where, " is ", attention.kv_heads,
                   ": attention heads must share heads of keys evenly");
}

void read_body(const Reader& read, Config& c, const SizeDefaults& defaults) {
  c.hidden_size = read.size("embedding_length", "hidden_size", kMaxWidth);
  c.layers.resize(defaults.all_predict ? static_cast<std::size_t>(layers_of_file(read).count) : layer_count(read));
  // GGUF files must have the length and eps, as llama.cpp asks: converters write both, and a default would be another model's.
  const std::string where = read.key("context_length", "max_position_embeddings");
  const auto length = read.integer("context_length", "max_position_embeddings");
  if (!length && read.gguf()) read.missing(where);
  c.n_ctx = read.in_range(length.value_or(defaults.n_ctx), 1, kMaxContext, where);
  read.gguf_says("context_length", c.n_ctx - c.position_offset);  // the converter leaves out positions that texts never use
  const bool rms = c.norm == NormKind::rms;
  const std::string_view usual = rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  c.eps = static_cast<float>(read.positive(defaults.gguf_eps.empty() ? usual : defaults.gguf_eps, rms ? "rms_norm_eps" : "layer_norm_eps",
                                           read.gguf() ? std::nullopt : std::optional(defaults.eps)));
  c.logit_softcap = softcap(read, "final_logit_softcapping", defaults.logit_softcap);
}

void read_networks(const Reader& read, Config& c, const SizeDefaults& defaults) {
  const auto widths = read_ffn_widths(read, c, c.layers.size(), defaults);
  const Activation activation = read_activation(read, defaults.activation);
  for (std::size_t i = 0; i < widths.size(); ++i)
    if (widths[i] > 0) c.layers[i].network = FeedForward{.width = static_cast<std::int32_t>(widths[i]), .activation = activation};
}

void read_sizes(const Reader& read, Config& c, const SizeDefaults& defaults) {
  read_body(read, c, defaults);
  const std::size_t layers = c.layers.size();
  const auto heads = read_heads(read, layers, defaults);
  const char* const heads_key = defaults.own_heads && read.has("", kOwnHeads) ? kOwnHeads : "num_attention_heads";
  const Attention attention = read_attention(read, c, heads.front(), defaults);
  const auto kv_heads = read_kv_heads(read, c, layers, attention.heads, defaults);
  read.gguf_says_by_layer("attention.head_count", heads);
  read.gguf_says_by_layer("attention.head_count_kv", kv_heads);
  read_networks(read, c, defaults);
  for (std::size_t i = 0; i < layers; ++i) {
    if (kv_heads[i] == 0) continue;
    Attention& a = c.layers[i].mixer.emplace<Attention>(attention);
    a.heads = static_cast<std::int32_t>(heads[i]);
    a.kv_heads = static_cast<std::int32_t>(kv_heads[i]);
    check_kv_heads(read, a, read.key("attention.head_count_kv", "num_key_value_heads"), heads_key);
  }
}

void say_kv_heads(const Reader& read, const Config& c) {
  std::vector<std::int64_t> heads;
  for (const Layer& layer : c.layers) heads.push_back(layer.if_attention() ? layer.if_attention()->kv_heads : 0);
  read.gguf_says_by_layer("attention.head_count_kv", heads);
}

void say_widths(const Reader& read, const Config& c) {
  std::vector<std::int64_t> widths;
  for (const Layer& layer : c.layers) {
    const Mixture* mixture = layer.if_mixture();
    const FeedForward* network = layer.if_feed_forward();
    widths.push_back(mixture ? mixture->width : network ? network->width : 0);
  }
  read.gguf_says_by_layer("feed_forward_length", widths);
}

void say_draft_layers(const Reader& read, const Config& c, std::int64_t count) {
  if (count < 0 || count > kMaxLayers) return;  // gguf_parts() reports this error
  read.gguf_says("block_count", static_cast<std::int64_t>(c.layers.size()) + count);
  read.gguf_says("nextn_predict_layers", count);
}

void read_windows(const Reader& read, Config& c, const WindowDefaults& defaults) {
  const std::size_t count = c.layers.size();
  std::int64_t window = read.has("attention.sliding_window", "sliding_window")
                            ? read.integer("attention.sliding_window", "sliding_window").value_or(0)
                            : (c.gguf && defaults.full_every == 0 ? 0 : defaults.window);
  read.in_range(window, 0, kMaxContext, read.key("attention.sliding_window", "sliding_window"));
  const bool in_gguf = defaults.gguf != GgufWindows::none &&
                       (read.has("", "sliding_window") ? read.integer("", "sliding_window").has_value() : window > 0);  // null: no window
  if (in_gguf)
    read.gguf_says("attention.sliding_window", window);
  else
    read.gguf_lacks({"attention.sliding_window"});
  if (!read.flag("", "use_sliding_window", defaults.used)) window = 0;  // Qwen 2's files have a window's size even if it is not used
  if (defaults.symmetric && (window > 0 || read.integer("attention.sliding_window", "sliding_window"))) {
    window = read.in_range(window, 2, kMaxContext, read.key("attention.sliding_window", "sliding_window")) / 2;
  }
  if (window >= stretched_context(read, c.n_ctx)) window = 0;  // a window of the whole context is no window
  std::int64_t full_every = defaults.full_every;
  const std::int64_t first = defaults.first > 0 ? read.integer("", "max_window_layers").value_or(defaults.first) : 0;
  std::vector<std::int64_t> windowed;  // one flag per layer: 1 if it has a window; empty if the file has no flags
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    const files::Value* letters = c.gguf ? nullptr : read.file().value(read.key("", key));
    if (letters && std::holds_alternative<std::string>(*letters)) {
      windowed = window_letters(read, key, count);
    } else if (const auto pattern = read.integer("", key); pattern && (*pattern != 0 || window > 0)) {  // without a window, 0 is ignored
      full_every = read.in_range(*pattern, 1, kMaxLayers, read.key("", key));
    }
  }
  // sliding_window_pattern in a GGUF file is a number n (every n-th layer has no window) or a list with one flag per layer.
  const std::string pattern = read.key("attention.sliding_window_pattern", "");
  if (c.gguf && read.file().has(pattern)) {
    if (const auto* flags = std::get_if<std::vector<bool>>(read.file().value(pattern))) {
      windowed.assign(flags->begin(), flags->end());
    } else {
      windowed = read.file().integer_list(pattern).value_or(std::vector<std::int64_t>{});
    }
    if (std::holds_alternative<std::int64_t>(*read.file().value(pattern))) {
      full_every = read.in_range(windowed.front(), 0, kMaxLayers, pattern);
      windowed.clear();
    } else if (windowed.size() != count) {
      read.unsupported(pattern, " has ", windowed.size(), " entries for ", count, " layers; one number, or one for each layer, is needed");
    }
  }
  const auto said = c.gguf ? std::nullopt : read.file().strings(read.key("", "layer_types"));
  if (said && said->size() != count)
    read.unsupported("layer_types has ", said->size(), " entries for ", count, " layers; one for each layer is needed");
  const auto types = said.value_or(std::vector<std::string>{});
  std::vector<bool> flags;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const bool leads = at < defaults.lead;
    const std::int64_t number = (leads ? at : at - defaults.lead) + (defaults.full_first ? 0 : 1);
    const std::int64_t every = leads ? defaults.lead_full_every : full_every;
    bool here = at >= first && (every == 0 || number % every != 0);
    if (!windowed.empty()) here = windowed[i] != 0;
    if (!types.empty()) {
      if (types[i] != "sliding_attention" && types[i] != "full_attention")
        read.unsupported("layer_types: layer type \"", types[i], "\" is not known; there are sliding_attention and full_attention");
      here = types[i] == "sliding_attention";
    }
    c.layers[i].windowed = here;
    c.layers[i].attention().window = here ? static_cast<std::int32_t>(window) : 0;
    flags.push_back(here);
  }
  if (in_gguf && defaults.gguf == GgufWindows::by_layer) read.gguf_says("attention.sliding_window_pattern", flags);
}

void read_position_buckets(const Reader& read, Config& c, const PositionBuckets& defaults) {
  constexpr const char* kCount = "relative_attention_num_buckets";
  constexpr const char* kGgufCount = "attention.relative_buckets_count";
  PositionBuckets& buckets = c.position_buckets.emplace();
  buckets.count = read.size(kGgufCount, kCount, 1 << 16, defaults.count);
  if (buckets.count < 4 || buckets.count % 2 != 0)
    read.unsupported(read.key(kGgufCount, kCount), " is ", buckets.count, "; an even number of at least 4 is needed");
  buckets.max_distance = c.gguf ? defaults.max_distance : read.size("", "relative_attention_max_distance", 1 << 16, defaults.max_distance);
  if (buckets.max_distance <= buckets.count / 4)
    read.unsupported("relative_attention_max_distance is ", buckets.max_distance, " for ", buckets.count, " buckets; more than ",
                     buckets.count / 4, " is needed");
  for (Layer& layer : c.layers) layer.attention().position_bias = PositionBias::buckets;
}

void make_bert_layers(Config& c) {
  for (Layer& layer : c.layers) {
    layer.attention().causal = false;
    layer.attention().qkv_bias = layer.attention().out_bias = layer.feed_forward().bias = true;
    layer.mixer_norms = layer.network_norms = {.before = false, .sum = true};
    layer.feed_forward().gated = false;
  }
}

void refuse_decoders(const Reader& read) {
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (read.flag("", key, false)) read.unsupported(key, " (an encoder as a decoder, which sees backwards alone) is not run");
  }
}

std::int32_t position_after_padding(const Reader& read, const Config& c) {
  if (c.gguf) return 0;  // converters to GGUF remove the rows before position 0
  return static_cast<std::int32_t>(read.in_range(read.integer("", "pad_token_id").value_or(1), 0, kMaxContext, "pad_token_id")) + 1;
}

void read_draft(const Reader& read, Config& c) {
  const std::string in_layer = str("blk.", c.layers.size(), "."), first = c.gguf ? in_layer : "mtp.";
  const auto any = [&](auto&& has) {
    return std::ranges::any_of(read.file().tensors(), [&](const files::TensorInfo& tensor) { return has(std::string_view(tensor.name)); });
  };
  const auto begins = [&](const std::string& begin) {
    return any([&](std::string_view name) { return name.starts_with(begin) || (!c.gguf && name.starts_with("model." + begin)); });
  };
  const auto with_attention = std::ranges::find_if(c.layers, [](const Layer& layer) { return layer.if_attention() != nullptr; });
  // True if the draft head has its own token embedding or its own matrix for logits.
  const bool dedicated = c.gguf ? begins(in_layer + "nextn.embed_tokens") || begins(in_layer + "nextn.shared_head_head")
                                : read.flag("", "mtp_use_dedicated_embeddings", false);
  if (!begins(first)) {
    c.why_no_draft = str("there is no tensor ", c.gguf ? in_layer + "nextn.eh_proj" : "mtp.fc", ".weight");
  } else if (begins(c.gguf ? str("blk.", c.layers.size() + 1, ".") : "mtp.layers.1.")) {
    c.why_no_draft = "it has several layers that predict draft tokens; one is run";
  } else if (dedicated) {
    c.why_no_draft = "the layer that predicts draft tokens has embeddings of its own, which is not run";
  } else if (with_attention == c.layers.end()) {
    c.why_no_draft = "no layer of the model has attention, as that of a draft head would";
  } else {
    c.draft = *with_attention;
  }
}

void read_attention_bias(const Reader& read, Config& c) {
  const bool bias = read.flag("", "attention_bias", false);
  for (Layer& layer : c.layers) {
    if (Attention* a = layer.if_attention()) a->qkv_bias = a->out_bias = bias;
  }
}

void read_mlp_bias(const Reader& read, Config& c) {
  const bool bias = read.flag("", "mlp_bias", false);
  for (Layer& layer : c.layers) {
    if (FeedForward* f = layer.if_feed_forward()) f->bias = bias;
  }
}

void add_mlm_head(Config& c, Activation activation) {
  if (!c.gguf) c.mlm_head = MlmHead{.width = c.table_width(), .activation = activation};
}

}  // namespace pumice::model
