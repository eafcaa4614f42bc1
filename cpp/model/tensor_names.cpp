#include "model/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "model/adapters.h"
#include "model/reader.h"
#include "model/settings.h"

namespace pumice::model {
namespace {

constexpr std::string_view kLayer = "{}", kExpert = "{expert}", kDraft = "mtp.";

std::string with_number(std::string_view pattern, std::string_view place, std::size_t number) {
  const std::size_t hole = pattern.find(place);
  if (hole == std::string_view::npos) return std::string(pattern);
  return str(pattern.substr(0, hole), number, pattern.substr(hole + place.size()));
}
std::string with_layer(std::string_view pattern, std::size_t layer) { return with_number(pattern, kLayer, layer); }

// Replaces the number of the expert in a tensor's name by "{expert}", if the name has such a number.
std::string without_expert(std::string name) {
  constexpr std::string_view kBefore = ".experts.";
  const std::size_t at = name.find(kBefore);
  if (at == std::string::npos) return name;
  const std::size_t first = at + kBefore.size(), end = name.find_first_not_of("0123456789", first);
  if (end == first || end == std::string::npos || name[end] != '.') return name;
  return name.replace(first, end - first, kExpert);
}

// Returns the number between `prefix` and the next dot of a tensor's name, or nothing if the name does not begin with `prefix` and a
// number.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), last, number);
  return error == std::errc{} && end != last && *end == '.' ? std::optional(number) : std::nullopt;
}

// Returns true if `name` is in `known`, as it is or after removing a suffix such as ".weight".
bool is_known(const std::set<std::string, std::less<>>& known, std::string_view name) {
  if (known.contains(name)) return true;
  for (const std::string_view suffix : {".weight", ".bias", ".gamma", ".beta", "_bias"})
    if (name.ends_with(suffix) && known.contains(name.substr(0, name.size() - suffix.size()))) return true;
  constexpr std::string_view kScales = "_scales";  // end of the name of the tensor with the scales of MXFP4 codes
  if (name.ends_with(kScales) && known.contains(str(name.substr(0, name.size() - kScales.size()), "_blocks"))) return true;
  const auto adapted = name.find(".parametrizations.");
  return adapted != std::string_view::npos && known.contains(name.substr(0, adapted));
}

// Returns true if the tensor is a buffer that training saves but that no program uses.
bool is_buffer(std::string_view name) {
  constexpr std::string_view kBuffers[] = {".inv_freq",    ".attn.bias",       ".attention.bias", ".masked_bias",
                                           ".causal_mask", ".embed_positions", ".position_ids",   ".token_type_ids"};
  return std::ranges::any_of(kBuffers, [&](std::string_view end) { return name.ends_with(end); });
}

// The order of rows in a tensor that several roles share. `runs` lists runs of rows, each of one role. The tensor repeats this list `times`
// times.
struct Layout {
  struct Run {
    Role role;
    std::int64_t rows;
  };
  std::int64_t times = 1;
  std::vector<Run> runs;

  Part of(Role role) const {
    Part part;
    for (const Run& run : runs) {
      if (run.role == role) part.first = part.stride, part.run = run.rows;
      part.stride += run.rows;
    }
    part.whole = times * part.stride;
    return part;
  }
};

Layout layout_of(Fused fused, const Layer& layer) {
  using enum Role;
  const Attention a = layer.if_attention() ? *layer.if_attention() : Attention{};
  const LatentAttention t = layer.if_latent_attention() ? *layer.if_latent_attention() : LatentAttention{};
  const Recurrent r = layer.if_recurrent() ? *layer.if_recurrent() : Recurrent{};
  const std::int64_t ffn = layer.if_feed_forward() ? layer.if_feed_forward()->width : 0;
  const bool has_shared = layer.if_mixture() && layer.if_mixture()->shared;
  const std::int64_t shared = has_shared ? layer.if_mixture()->shared->network.width : 0;
  const std::int64_t expert = layer.if_mixture() ? layer.if_mixture()->width : 0;
  const std::int64_t keys = r.key_width(), values = r.value_width(), each = r.heads / std::max(r.key_heads, 1);
  switch (fused) {
    case Fused::no:
      break;
    case Fused::qkv:
      return {1, {{q, a.q_width()}, {k, a.kv_width()}, {v, a.kv_width()}}};
    case Fused::qkv_by_head:
      return {a.kv_heads, {{q, a.q_width() / std::max(a.kv_heads, 1)}, {k, a.head_dim}, {v, a.head_dim}}};
    case Fused::qvk_by_quarter:
      return {4, {{q, a.q_width() / 4}, {v, a.q_width() / 4}, {k, a.q_width() / 4}}};
    case Fused::q_gate_by_head:
      return {a.heads, {{q, a.head_dim}, {attn_gate, a.head_dim}}};
    case Fused::gate_up:
      return {1, {{gate, ffn}, {up, ffn}}};
    case Fused::up_gate:
      return {1, {{up, ffn}, {gate, ffn}}};
    case Fused::latent_q:
    case Fused::whole_q:
      return {t.heads, {{latent_q_plain, t.plain_dim}, {latent_q_rope, t.rope_dim}}};
    case Fused::latent_down:
      return {1, {{latent_down, t.latent_dim}, {latent_k_rope, t.rope_dim}}};
    case Fused::latent_up:
      return {t.heads, {{latent_key, t.plain_dim}, {latent_value, t.value_dim}}};
    case Fused::scan_qkv:
      return {1, {{scan_q, keys}, {scan_k, keys}, {scan_v, values}}};
    case Fused::scan_parts:
      return {1, {{scan_gate, values}, {scan_v, values}, {scan_k, keys}, {scan_q, keys}, {scan_step, r.heads}}};
    case Fused::scan_qkv_gate_by_head:
      return {r.key_heads, {{scan_q, r.key_dim}, {scan_k, r.key_dim}, {scan_v, each * r.value_dim}, {scan_gate, each * r.value_dim}}};
    case Fused::scan_beta_step_by_head:
      return {r.key_heads, {{scan_beta, each}, {scan_step, each}}};
    case Fused::expert_gate_up:
      return {1, {{expert_gate, expert}, {expert_up, expert}}};
    case Fused::expert_gate_up_by_row:
      return {expert, {{expert_gate, 1}, {expert_up, 1}}};
    case Fused::shared_gate_up:
      return {1, {{shared_gate, shared}, {shared_up, shared}}};
    case Fused::taps_qkv:
      return {1, {{scan_q_taps, keys}, {scan_k_taps, keys}, {scan_v_taps, values}}};
    case Fused::taps_vkq:
      return {1, {{scan_v_taps, values}, {scan_k_taps, keys}, {scan_q_taps, keys}}};
  }
  return {};
}

// Beginnings of names of tensors that do not affect the model's results. They belong to encoders of images and sounds, to heads for
// pre-training, and to layers that predict draft tokens ("mtp.", "mtp_"), which load(mtp=False) leaves out.
constexpr std::string_view kOtherParts[] = {
    "vision_tower.",
    "vision_model.",
    "visual.",
    "visual_projection.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "vision_embedder.",
    "logit_scale",
    "cls.",
    "lm_head.",
    "pooler.",
    "predictions.",
    "sop_classifier.",
    "lm_predictions.",
    "mask_predictions.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "generator_lm_head",
    "generator_predict",
    "discriminator_pre",
    "decoder.",
    "head.decoder.",
    "head.linear1.",
    "head.linear2.",
    "mtp.",
    "mtp_",
};
// Beginnings of names of tensors in GGUF files that no role reads. The rope factors are read by rope_factors.cpp, and the other tensors do
// not affect the model's results.
constexpr std::string_view kOtherPartsInGguf[] = {"dec.", "output.", "rope_freqs.", "rope_factors_"};

bool begins_with_one_of(std::span<const std::string_view> beginnings, std::string_view name) {
  return std::ranges::any_of(beginnings, [&](std::string_view begin) { return name.starts_with(begin); });
}

}  // namespace

TensorNames::TensorNames(const files::ModelFile& file, const Config& config) : file_(file), config_(config) {
  if (!config_.gguf) choose_prefix();
  require_no_more_layers();
}

// Returns a role's names in the order in which they are tried. The family's own names come first. In GGUF files, the name of the fused q, k
// and v tensor comes next, because llama.cpp's converter can write this tensor for any family. For decoders, the usual names of a
// classifier come last. A classifier of tokens has the same two names in all families.
std::vector<TensorName> TensorNames::names_of(Role role, bool gguf) const {
  static constexpr TensorName kFusedInGguf[] = {{Role::q, "blk.{}.attn_qkv", "", Fused::qkv},
                                                {Role::k, "blk.{}.attn_qkv", "", Fused::qkv},
                                                {Role::v, "blk.{}.attn_qkv", "", Fused::qkv}};
  static constexpr TensorName kOfDecoders[] = {{Role::classifier, "cls.output", "score"}};
  static constexpr TensorName kOfTokens[] = {{Role::classifier, "", "classifier"}, {Role::classifier, "", "score"}};
  std::vector<TensorName> names;
  const auto take = [&](std::span<const TensorName> from) {
    for (const TensorName& name : from) {
      if (name.role == role && !(gguf ? name.gguf : name.safetensors).empty()) names.push_back(name);
    }
  };
  if (role == Role::classifier && config_.classifier.what == Classifies::tokens) {
    take(kOfTokens);
    return names;
  }
  take(config_.family->names);
  if (names.empty()) take(config_.family->more_names);
  take(kFusedInGguf);
  if (config_.has_head) take(kOfDecoders);
  return names;
}

bool TensorNames::shared(Role role) const {
  const auto names = names_of(role);
  return of(role) != Of::draft && !names.empty() && pattern(names[0]).find("{}") == std::string_view::npos;
}

// Sets prefix_ to the prefix under which the file has the token embedding. transformers saves a model with or without the prefix of a
// task's wrapper class, so any prefix of the family is possible.
void TensorNames::choose_prefix() {
  const auto embeddings = names_of(Role::token_embedding);
  for (std::string_view prefix : config_.family->prefixes) {
    for (const TensorName& embedding : embeddings) {
      const std::string name = str(prefix, embedding.safetensors);
      if (!file_.find(name + ".weight") && !file_.find(str(name, Adapters::kOriginal))) continue;
      prefix_ = prefix;
      return;
    }
  }
  model::missing(file_, str(config_.family->prefixes.front(), embeddings.front().safetensors, ".weight"));
}

std::vector<std::string> TensorNames::in_file(const TensorName& name, std::size_t layer, std::int32_t expert) const {
  layer = config_.layer_in_file(layer);
  if (config_.gguf) return {with_layer(name.gguf, layer)};
  if (of_layer(name.role) && layer == config_.draft_index()) {  // names such as "mtp.fc" and "mtp.layers.0.mlp.up_proj"
    const std::string own = with_number(with_number(name.safetensors, kExpert, static_cast<std::size_t>(expert)), kLayer, 0);
    const std::string in_draft = own.starts_with(kDraft) ? own : str(kDraft, own);
    std::vector<std::string> names = {in_draft, str("model.", in_draft)};
    if (!config_.draft)
      names.push_back(prefix_ + with_number(with_layer(name.safetensors, layer), kExpert, static_cast<std::size_t>(expert)));
    return names;
  }
  std::vector<std::string> names = {prefix_ + with_number(with_layer(name.safetensors, layer), kExpert, static_cast<std::size_t>(expert))};
  if (of(name.role) == Of::end) {  // the name may or may not have the prefix (BERT's pooler)
    names.insert(names.begin(), std::string(name.safetensors));
    names.push_back("language_model." + std::string(name.safetensors));
  }
  return names;
}

// Returns the tensor of a name with `suffix` or `old_suffix`, or null if the file does not have it. `old_suffix` is for BERT checkpoints of
// 2018, in which the weight and the bias of a LayerNorm are called gamma and beta.
const files::TensorInfo* TensorNames::tensor(const TensorName& name, std::size_t layer, std::string_view suffix,
                                             std::string_view old_suffix) const {
  for (const std::string& begin : in_file(name, layer)) {
    if (bare(name)) {
      if (const auto* found = file_.find(suffix == "weight" ? begin : str(begin, "_", suffix))) return found;
      if (suffix != "weight" || !transposed(name)) continue;
      // A stack that pumice makes of packed and transposed tensors has ".weight" in its name (files/schemes/byte_rows.h).
      if (const auto* found = file_.find(str(begin, ".weight")); found && found->made) return found;
      continue;
    }
    if (const auto* found = file_.find(str(begin, ".", suffix))) return found;
    if (const auto* found = file_.find(str(begin, ".", old_suffix))) return found;
    if (suffix != "weight") continue;
    if (const auto* found = file_.find(str(begin, Adapters::kOriginal))) return found;
  }
  return nullptr;
}

// Returns the first of the role's tensors that the file has. If several roles share the tensor, it must have the rows of all these roles,
// because in another file the same name may belong to a tensor of one role only. If no tensor has the needed number of rows, returns the
// first tensor found.
TensorNames::Found TensorNames::find(Role role, std::size_t layer, std::string_view suffix, std::string_view old_suffix) const {
  Found first;
  for (TensorName name : names_of(role)) {
    const auto* found = tensor(name, layer, suffix, old_suffix);
    if (!found) continue;
    if (bare(name) && found->made) name.transposed = false;
    const Part rows = part(name, role, layer);
    const bool stacked = of(role) == Of::mixture && found->shape.size() >= 3;
    const std::size_t row_axis = (transposed(name) ? 1 : 0) + (stacked ? 1 : 0);
    if (rows.whole == 0 || (found->shape.size() > row_axis && found->shape[row_axis] == rows.whole)) return {name, found, rows};
    if (!first.tensor) first = {name, found, rows};
  }
  return first;
}

std::vector<const files::TensorInfo*> TensorNames::each_expert(const Found& found, std::size_t layer, std::int32_t experts) const {
  std::vector<const files::TensorInfo*> all;
  if (config_.gguf || found.name.safetensors.find(kExpert) == std::string_view::npos) return all;
  for (std::int32_t e = 0; e < experts; ++e) {
    const std::string name = str(in_file(found.name, layer, e).front(), ".weight");
    all.push_back(file_.find(name));
    if (!all.back()) model::missing(file_, name);
  }
  return all;
}

Part TensorNames::part(const TensorName& name, Role role, std::size_t layer) const {
  if (role == Role::position_embedding) return {.first = config_.position_offset};
  return layout(name, role, layer);
}

Part TensorNames::layout(const TensorName& name, Role role, std::size_t layer) const {
  if (name.fused == Fused::no) return {};
  // A layer after the model's layers predicts draft tokens. If pumice does not run it, its tensors are assumed to be laid out like those of
  // the last layer.
  const bool known = layer < config_.layers.size() || config_.draft;
  return layout_of(name.fused, known ? config_.layer(layer) : config_.layers.back()).of(role);
}

std::optional<TensorName> TensorNames::in_gguf(Role role, const TensorName& here) const {
  if (here.fused == Fused::no && !here.gguf.empty()) return here;
  const bool queries = here.fused == Fused::latent_q || here.fused == Fused::whole_q;
  const auto names = names_of(role, true);
  const auto found = std::ranges::find_if(names, [&](const TensorName& name) { return !queries || name.fused == here.fused; });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::string TensorNames::first_name(Role role, std::size_t layer, std::string_view suffix) const {
  const auto names = names_of(role);
  if (names.empty()) {
    fail(ErrorKind::unsupported_model, file_.path(), ": files of this kind have no place for a tensor that \"", config_.family->name,
         "\" needs (role ", kRoleNames[static_cast<std::size_t>(role)], ")");
  }
  // The name for queries of latent attention depends on whether q_rank is 0.
  const LatentAttention* latent = of(role) == Of::latent_attention ? config_.layer(layer).if_latent_attention() : nullptr;
  const auto fits = [&](const TensorName& name) {
    return !latent || name.fused != (latent->q_rank > 0 ? Fused::whole_q : Fused::latent_q);
  };
  const auto found = std::ranges::find_if(names, fits);
  const TensorName& name = found == names.end() ? names.front() : *found;
  const std::string begin = in_file(name, layer).front();
  if (bare(name)) return suffix == "weight" ? begin : str(begin, "_", suffix);
  return str(begin, ".", suffix);
}

// Returns the names that adapters may use for the role. They are the role's names in the model's own kind of file. For safetensors files,
// the result also has each of these names with each prefix of the family, because PEFT writes the prefix of a wrapper class.
std::vector<std::string> TensorNames::adapter_names(Role role, std::size_t layer) const {
  std::vector<std::string> names;
  for (const TensorName& name : names_of(role)) {
    const std::string in_layer = with_layer(pattern(name), config_.layer_in_file(layer));
    const Mixture* mixture = of_layer(role) ? config_.layer(layer).if_mixture() : nullptr;
    const bool by_expert = mixture && in_layer.find(kExpert) != std::string::npos;
    const auto count = by_expert ? static_cast<std::size_t>(mixture->router.experts) : 1;
    for (std::size_t expert = 0; expert < count; ++expert) {
      const std::string module = with_number(in_layer, kExpert, expert);
      names.push_back(module);
      for (const std::string_view prefix : config_.family->prefixes)
        if (!config_.gguf && !prefix.empty()) names.push_back(str(prefix, module));
    }
  }
  return names;
}

// Returns the parts of tensor names before the number of a layer in this kind of file, for example "blk." or "model.layers.".
std::set<std::string> TensorNames::before_layers() const {
  std::set<std::string> found;
  for (const auto& names : {config_.family->names, config_.family->more_names}) {
    for (const TensorName& name : names) {
      if (const std::size_t hole = pattern(name).find("{}"); hole != std::string_view::npos)
        found.insert((config_.gguf ? "" : prefix_) + std::string(pattern(name).substr(0, hole)));
    }
  }
  return found;
}

// Throws if the file has more layers than its configuration says. Such a model would run without its additional layers and compute wrong
// results.
void TensorNames::require_no_more_layers() const {
  const Reader read(Reader(file_), config_.family->keys);
  auto [key, count] = layers_of_file(read);
  // Layers that predict draft tokens come after the others (DeepSeek V3, GLM-4.5). block_count of a GGUF file includes them, but the number
  // of layers in config.json does not.
  if (!config_.gguf) {
    const std::string more = read.key("", "num_nextn_predict_layers");
    count += read.in_range(read.integer("", "num_nextn_predict_layers").value_or(0), 0, kMaxLayers, more);
  }
  const std::set<std::string> before = before_layers();
  for (const files::TensorInfo& tensor : file_.tensors()) {
    for (const std::string& prefix : before) {
      const auto layer = number_after(tensor.name, prefix);
      if (!layer || *layer < count) continue;
      throw Error(ErrorKind::model_format, str(file_.path(), ": ", key, " is ", config_.layers.size(), ", and there is a tensor ",
                                               tensor.name, "; layers up to ", *layer, " need a ", key, " of ", *layer + 1))
          .in_file(file_.path())
          .at_field(key);
    }
  }
}

// Returns the names of the tensors of all roles for which `reads` returns true, with "{}" in place of the number of a layer. A role counts
// as used in all layers if one layer uses it, because Gemma 4 files have keys even in layers that do not use them. Roles at the end of a
// model (Of::end) always count as used, because the task decides which of them are needed.
std::set<std::string, std::less<>> TensorNames::names_read(const std::function<bool(Role)>& reads) const {
  std::set<std::string, std::less<>> known;
  for (std::size_t i = 0; i < kRoles; ++i) {
    const auto role = static_cast<Role>(i);
    if (of(role) != Of::end && !reads(role)) continue;
    for (const TensorName& name : names_of(role)) {
      known.insert((config_.gguf ? "" : prefix_) + std::string(pattern(name)));
      if (!of_layer(role))
        for (std::string& each : in_file(name, 0)) known.insert(std::move(each));
    }
  }
  if (!names_of(Role::head).empty()) known.insert(config_.gguf ? "cls.output" : "score");  // the classifier of a decoder
  for (const std::string_view name : config_.family->read_by_configure) known.insert(prefix_ + std::string(name));
  known.insert(config_.dense.begin(), config_.dense.end());
  return known;
}

bool TensorNames::of_other_part(std::string_view name) const {
  if (config_.gguf) return begins_with_one_of(kOtherPartsInGguf, name);
  if (!prefix_.empty() && name.starts_with(prefix_)) return begins_with_one_of(kOtherParts, name.substr(prefix_.size()));
  if (name.starts_with("model.")) name.remove_prefix(std::string_view("model.").size());
  return begins_with_one_of(kOtherParts, name);
}

TensorNames::Unread TensorNames::unread(const std::function<bool(Role)>& reads) const {
  const auto known = names_read(reads);
  const std::set<std::string> before = before_layers();
  Unread unread;
  for (const files::TensorInfo& tensor : file_.tensors()) {
    const std::string_view name = tensor.name;
    if (is_buffer(name) || is_known(known, name)) continue;
    const auto begin = std::ranges::find_if(before, [&](const std::string& each) { return number_after(name, each).has_value(); });
    if (begin == before.end()) {
      if (!of_other_part(name)) unread.others.push_back(tensor.name);
      continue;
    }
    // A layer after the model's layers predicts draft tokens (require_no_more_layers()), so its tensors need not be used.
    if (*number_after(name, *begin) >= static_cast<std::int64_t>(config_.layers.size())) continue;
    if (!is_known(known, without_expert(str(*begin, "{}", name.substr(name.find('.', begin->size()))))))
      unread.in_layers.push_back(tensor.name);
  }
  return unread;
}

}  // namespace pumice::model
