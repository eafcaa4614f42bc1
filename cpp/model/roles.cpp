#include "model/roles.h"

#include "model/description.h"

namespace pumice::model {
namespace {

struct Shape {
  std::int64_t rows, cols;
  std::int32_t experts = 0;
};
constexpr Shape matrix(std::int64_t rows, std::int64_t cols) { return {rows, cols}; }
constexpr Shape vector(std::int64_t length) { return {length, 0}; }
constexpr Shape stack(std::int32_t experts, std::int64_t rows, std::int64_t cols) { return {rows, cols, experts}; }
constexpr std::int64_t any = 0;
constexpr bool no = false;

Asked make(Need need, Shape shape, bool bias, Use use) {
  return {.need = need, .rows = shape.rows, .cols = shape.cols, .experts = shape.experts, .bias = bias, .use = use};
}

bool has_part(const Layer& layer, Of part, bool drafts) {
  switch (part) {
    case Of::model:
    case Of::end:
    case Of::layer:
      return true;
    case Of::attention:
      return layer.if_attention() != nullptr;
    case Of::latent_attention:
      return layer.if_latent_attention() != nullptr;
    case Of::recurrent:
      return layer.if_recurrent() != nullptr;
    case Of::short_conv:
      return layer.if_short_conv() != nullptr;
    case Of::feed_forward:
      return layer.if_feed_forward() != nullptr;
    case Of::mixture:
      return layer.if_mixture() != nullptr;
    case Of::draft:
      return drafts;
  }
  return false;
}

}  // namespace

Asked asked(const Description& d, Role role, std::size_t layer) {
  using enum Need;
  using enum Use;
  static const Norms kNoNorms{.before = false};
  static const Layer kNone{.mixer = Attention{}, .beside = Recurrent{}, .network = FeedForward{}};
  static const LatentAttention kNoLatent{};
  static const ShortConv kNoShortConv{};
  static const Mixture kNoMixture{};
  static const SharedExpert kNoShared{};
  const Config& c = d.config;
  const Layer& l = of_layer(role) ? c.layer(layer) : kNone;
  if (!has_part(l, of(role), layer == c.draft_index())) return {};
  const Attention& a = l.if_attention() ? *l.if_attention() : kNone.attention();
  const LatentAttention& t = l.if_latent_attention() ? *l.if_latent_attention() : kNoLatent;
  const Recurrent& r = l.if_recurrent() ? *l.if_recurrent() : *kNone.if_recurrent();
  const ShortConv& s = l.if_short_conv() ? *l.if_short_conv() : kNoShortConv;
  const FeedForward& f = l.if_feed_forward() ? *l.if_feed_forward() : kNone.feed_forward();
  const Mixture& x = l.if_mixture() ? *l.if_mixture() : kNoMixture;
  const SharedExpert& e = x.shared ? *x.shared : kNoShared;
  const Norms& m = std::holds_alternative<std::monostate>(l.mixer) ? kNoNorms : l.mixer_norms;
  const Norms& n = std::holds_alternative<std::monostate>(l.network) ? kNoNorms : l.network_norms;
  const std::int64_t heads = c.first_attention() ? c.first_attention()->heads : 0;
  const RelativePlaces p = c.places() ? *c.places() : RelativePlaces{};
  const MlmHead g = c.mlm_head.value_or(MlmHead{});
  const std::int64_t hidden = c.hidden_size, inputs = c.layer_inputs ? c.layer_inputs->width : 0;
  const std::int64_t buckets = c.position_buckets ? c.position_buckets->count : 0, backbone = c.backbone ? c.backbone->hidden_size : 0;
  const bool norm_after_map = c.embedding_map && c.embedding_map->norm_after;
  const auto when = [](bool asks) { return asks ? always : never; };
  const auto norm = [&](bool asks) { return when(asks && c.norm_weight); };
  switch (role) {
#define PUMICE_ROLE(name, of, need, shape, bias, use) \
  case Role::name:                                    \
    return make(need, shape, bias, use);
#include "model/roles.def"
#undef PUMICE_ROLE
  }
  fail(ErrorKind::unsupported_model, "a role without a row in roles.def");
}

}  // namespace pumice::model
