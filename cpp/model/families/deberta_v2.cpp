// DeBERTa v2 and v3 (He et al. 2021, 2023) have BERT's layers. Queries and keys are multiplied by embeddings of relative positions, and the
// products are added to attention scores. Cross-encoders (mxbai-rerank v1) and classifiers for natural language inference are of this kind.
#include <cmath>

#include "model/families/names.h"
#include "model/settings.h"

namespace pumice::model::families_in_files::deberta_v2 {
namespace {

using enum Role;

constexpr std::string_view kTypes[] = {"deberta-v2"}, kPrefixes[] = {"", "deberta."};
constexpr std::string_view kNormOfPlaces[] = {"encoder.LayerNorm"};  // some files have this norm although relative_attention is false
constexpr KeyName kKeys[] = {{"head_dim", "attention_head_size"}};
constexpr TensorName kNames[] = {{q, "", "encoder.layer.{}.attention.self.query_proj"},
                                 {k, "", "encoder.layer.{}.attention.self.key_proj"},
                                 {v, "", "encoder.layer.{}.attention.self.value_proj"},
                                 {place_k, "", "encoder.layer.{}.attention.self.pos_key_proj"},
                                 {place_q, "", "encoder.layer.{}.attention.self.pos_query_proj"},
                                 {place_embedding, "", "encoder.rel_embeddings"},
                                 {place_norm, "", "encoder.LayerNorm"},
                                 {embedding_map, "", "embeddings.embed_proj"},
                                 {head_dense, "", "pooler.dense"},
                                 {classifier, "", "classifier"},
                                 {mlm_dense, "", "cls.predictions.transform.dense"},
                                 {mlm_norm, "", "cls.predictions.transform.LayerNorm"},
                                 {mlm_decoder, "", "cls.predictions.decoder"},
                                 {mlm_decoder, "", "cls.predictions"},
                                 // names in files whose config.json has legacy=false
                                 {mlm_dense, "", "lm_predictions.lm_head.dense"},
                                 {mlm_norm, "", "lm_predictions.lm_head.LayerNorm"},
                                 {mlm_decoder, "", "lm_predictions.lm_head"}};

// Splits a text such as "p2c|c2p" at each "|", and leaves out spaces.
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> found(1);
  for (const char c : text) {
    if (c == '|')
      found.emplace_back();
    else if (c != ' ')
      found.back() += c;
  }
  return found;
}

void read_terms(const Reader& read, RelativePlaces& places) {
  const files::Value* said = read.file().value(read.key("", "pos_att_type"));
  const bool text = said != nullptr && std::holds_alternative<std::string>(*said);
  const auto list = text ? std::nullopt : read.file().strings(read.key("", "pos_att_type"));
  for (const std::string& term : text ? words(std::get<std::string>(*said)) : list.value_or(std::vector<std::string>{})) {
    if (term == "c2p")
      places.by_query = true;
    else if (term == "p2c")
      places.by_key = true;
    else if (term != "none")
      read.unsupported("pos_att_type \"", term, "\" is not known; there are c2p and p2c");
  }
}

void read_places(const Reader& read, Config& c) {
  RelativePlaces places;
  read_terms(read, places);
  for (Layer& layer : c.layers) {
    Attention& a = layer.attention();
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim) * (1 + places.by_query + places.by_key)));
  }
  if (!read.flag("", "relative_attention", false)) return;  // a.scale stays as set above
  if (!places.by_query && !places.by_key) read.unsupported("pos_att_type names neither c2p nor p2c, of which relative_attention needs one");
  for (const std::string& norm : words(read.string("", "norm_rel_ebd").value_or("none"))) {
    if (norm == "layer_norm")
      places.norm = true;
    else if (norm != "none")
      read.unsupported("norm_rel_ebd \"", norm, "\" is not known; there are layer_norm and none");
  }
  places.shared = read.flag("", "share_att_key", false);
  constexpr const char *kMost = "max_relative_positions", *kBuckets = "position_buckets";
  const std::int64_t said = read.integer("", kMost).value_or(-1);
  const std::int64_t most = said < 1 ? c.n_ctx : said, buckets = read.integer("", kBuckets).value_or(-1);
  places.span =
      static_cast<std::int32_t>(buckets > 0 ? read.in_range(buckets, 4, 1 << 14, kBuckets) : read.in_range(most, 1, 1 << 14, kMost));
  if (buckets > 0) {
    places.max_distance = static_cast<std::int32_t>(read.in_range(most, 1, 1 << 20, kMost));
    if (places.max_distance - 1 <= places.span / 2)
      read.unsupported(kMost, " is ", most, " for ", buckets, " ", kBuckets, "; more than ", places.span / 2 + 1, " is needed");
  }
  for (Layer& layer : c.layers) layer.attention().places = places;
}

void configure(const Reader& read, Config& c) {
  c.norm = NormKind::layer;
  c.has_head = c.final_norm = false;
  c.embedding_norm = c.norm_bias = true;
  c.learned_positions = read.flag("", "position_biased_input", true);
  c.token_types = read.in_range(read.integer("", "type_vocab_size").value_or(0), 0, 1 << 16, "type_vocab_size") > 0;
  read_sizes(read, c, {.kv_heads = kNoSuchKey, .n_ctx = 512, .eps = 1e-7, .activation = Activation::gelu});
  refuse_decoders(read);
  make_bert_layers(c);
  c.classifier = {.dense = DenseBefore::texts,
                  .activation = activation_named(read, "pooler_hidden_act", read.string("", "pooler_hidden_act").value_or("gelu"))};
  if (const std::int64_t kernel = read.integer("", "conv_kernel_size").value_or(0); kernel > 0)
    read.unsupported("conv_kernel_size is ", kernel, ": the convolution behind the first layer (deberta-v2-xlarge) is not run");
  const std::int32_t width = read.size("", "embedding_size", kMaxWidth, c.hidden_size);
  if (width != c.hidden_size) c.embedding_map = {.width = width, .norm_after = true};
  read_places(read, c);
  add_mlm_head(c, c.layers.front().feed_forward().activation);
}

}  // namespace

const Family deberta_v2{.name = "deberta_v2",
                        .model_types = kTypes,
                        .prefixes = kPrefixes,
                        .names = kNames,
                        .more_names = names::kBert,
                        .keys = kKeys,
                        .configure = configure,
                        .read_by_configure = kNormOfPlaces};

}  // namespace pumice::model::families_in_files::deberta_v2
