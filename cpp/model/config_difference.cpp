#include "model/config_difference.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "model/family.h"

namespace pumice::model {
namespace {

constexpr double kSame = 1e-5;

// Defines compare() for a struct, given the list of its fields. If a field is missing in the list, this file does not compile.
#define PUMICE_COMPARE(Type, ...)                \
  void compare(const Type& a, const Type& b) {   \
    const auto tied = [](const Type& given) {    \
      const auto& [__VA_ARGS__] = given;         \
      return std::tie(__VA_ARGS__);              \
    };                                           \
    each(#Type, #__VA_ARGS__, tied(a), tied(b)); \
  }

class Comparison {
 public:
  std::vector<Difference> found;

  void add(const std::string& a, const std::string& b) {
    const auto known = [&](const Difference& each) { return each.field == field_; };
    if (std::ranges::any_of(found, known)) return;
    found.push_back({field_, (layer_.empty() ? "" : "layer " + layer_ + ": ") + a + " and " + b});
  }

  PUMICE_COMPARE(Norms, before, branch, sum, residual)
  PUMICE_COMPARE(RelativePlaces, span, max_distance, by_query, by_key, shared, norm)
  PUMICE_COMPARE(ValueRule, normalised, from_keys)
  PUMICE_COMPARE(KvFrom, layer)
  PUMICE_COMPARE(Temperature, growth, length, offset)
  PUMICE_COMPARE(Chunks, length)
  PUMICE_COMPARE(OutputGate, by_head, bias, activation)
  PUMICE_COMPARE(Multipliers, in, out)
  PUMICE_COMPARE(Attention, heads, kv_heads, head_dim, causal, window, rope, scale, softcap, qk_norm, position_bias, sinks, qkv_bias,
                 out_bias, places, values, kv_from, temperature, chunks, gate, multipliers)
  PUMICE_COMPARE(LatentAttention, heads, latent_dim, plain_dim, rope_dim, value_dim, q_rank, rope, scale, bias)
  PUMICE_COMPARE(ScanNorm, group, per_column, before_gate, eps)
  PUMICE_COMPARE(ScanFactors, q, k, v, gate, step)
  PUMICE_COMPARE(DeltaRule, tiled, strength)
  PUMICE_COMPARE(Recurrent, rule, heads, key_heads, key_dim, value_dim, taps, activation, delta, in_bias, conv_bias, out_bias, norm,
                 factors, multipliers)
  PUMICE_COMPARE(ShortConv, taps, bias, causal)
  PUMICE_COMPARE(Xielu, alpha_p, alpha_n)
  PUMICE_COMPARE(FeedForward, width, gated, activation, bias, xielu, multipliers)
  PUMICE_COMPARE(Router, experts, chosen, groups, kept, score, softcap, bias, choice_bias, normalised, floor, scale)
  PUMICE_COMPARE(SharedExpert, network, opened)
  PUMICE_COMPARE(Clamp, limit, shift)
  PUMICE_COMPARE(OwnNorms, expert_scales)
  PUMICE_COMPARE(Mixture, router, width, gated, activation, bias, combine, clamp, own_norms, shared)
  PUMICE_COMPARE(Join, parallel, scale)
  PUMICE_COMPARE(Tail, input, scaled, final_norm)
  PUMICE_COMPARE(Layer, mixer, beside, network, mixer_norms, network_norms, join, windowed, tail)
  PUMICE_COMPARE(ClassifierHead, what, pooling, dense, activation, norm, dense_bias, bias, difference)
  PUMICE_COMPARE(MlmHead, width, dense, activation, dense_bias, bias)
  PUMICE_COMPARE(PositionBuckets, count, max_distance)
  PUMICE_COMPARE(TextEnd, id)
  PUMICE_COMPARE(Loops, count)
  PUMICE_COMPARE(HeadColumns, floor)
  PUMICE_COMPARE(Backbone, hidden_size)
  PUMICE_COMPARE(LayerInputs, width, table, embedding_scale, projection_scale, scale, activation)
  PUMICE_COMPARE(EmbeddingMap, width, norm_after)
  PUMICE_COMPARE(RopeTable, inv_freq, interleaved, magnitude, original, long_inv_freq, base, growth)
  PUMICE_COMPARE(Config, family, gguf, hidden_size, n_ctx, layers, loops, draft, why_no_draft, backbone, ropes, alibi_slopes,
                 position_buckets, norm, eps, norm_weight, norm_bias, norm_offset, embedding_scale, embedding_map, layer_inputs,
                 embedding_norm, learned_positions, position_offset, token_types, final_norm, has_head, head_bias, head_columns,
                 head_transform, classifier, mlm_head, projects_rows, logit_scale, logit_softcap, text_end, pooling, notes, incomplete,
                 dense)

 private:
  template <class A>
  static std::string shown(const A& value) {
    if constexpr (std::is_enum_v<A>) {
      return str(static_cast<int>(value));
    } else if constexpr (std::is_same_v<A, bool>) {
      return value ? "true" : "false";
    } else {
      return str(value);
    }
  }

  void compare(const Family* a, const Family* b) {
    if (a != b) add(a ? std::string(a->name) : "none", b ? std::string(b->name) : "none");
  }
  void compare(const std::string& a, const std::string& b) {
    if (a != b) add(a, b);
  }
  void compare(std::monostate, std::monostate) {}
  template <class A>
    requires(std::is_arithmetic_v<A> || std::is_enum_v<A>)
  void compare(A a, A b) {
    bool same = a == b;
    if constexpr (std::is_floating_point_v<A>)
      same = std::fabs(static_cast<double>(a) - static_cast<double>(b)) <= kSame * std::fabs(static_cast<double>(a));
    if (!same) add(shown(a), shown(b));
  }
  template <class A>
  void compare(const std::optional<A>& a, const std::optional<A>& b) {
    if (a.has_value() != b.has_value()) {
      add(a ? "some" : "none", b ? "some" : "none");
    } else if (a) {
      compare(*a, *b);
    }
  }
  template <class A>
  void compare(const std::vector<A>& a, const std::vector<A>& b) {
    if (a.size() != b.size()) {
      add(shown(a.size()) + " values", shown(b.size()) + " values");
      return;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if constexpr (std::is_same_v<A, Layer>) layer_ = std::to_string(i);
      compare(a[i], b[i]);
      if constexpr (std::is_same_v<A, Layer>) layer_.clear();
    }
  }
  template <class... A>
  void compare(const std::variant<A...>& a, const std::variant<A...>& b) {
    if (a.index() != b.index()) {
      add("kind " + shown(a.index()), "kind " + shown(b.index()));
      return;
    }
    std::visit([&](const auto& part) { compare(part, std::get<std::decay_t<decltype(part)>>(b)); }, a);
  }

  template <class Fields>
  void each(std::string_view type, std::string_view names, const Fields& a, const Fields& b) {
    [&]<std::size_t... index>(std::index_sequence<index...>) {
      (field(type, names, std::get<index>(a), std::get<index>(b)), ...);
    }(std::make_index_sequence<std::tuple_size_v<Fields>>());
  }
  // Compares two values of the field whose name comes first in `names`, and removes that name from `names`.
  template <class A>
  void field(std::string_view type, std::string_view& names, const A& a, const A& b) {
    const std::size_t comma = names.find(',');
    const std::string outer = std::exchange(field_, std::string(type) + "::" + std::string(names.substr(0, comma)));
    compare(a, b);
    field_ = outer;
    names.remove_prefix(comma == std::string_view::npos ? names.size() : names.find_first_not_of(", ", comma));
  }

  std::string field_, layer_;
};

#undef PUMICE_COMPARE

// Empties the rope tables that no layer uses, so that they are not compared.
void drop_unused_ropes(Config& c) {
  std::vector<bool> used(c.ropes.size());
  for (const Layer& layer : c.layers) {
    const Attention* const attention = layer.if_attention();
    const LatentAttention* const latent = layer.if_latent_attention();
    const std::int32_t rope = attention ? attention->rope : latent ? latent->rope : -1;
    if (rope >= 0) used[static_cast<std::size_t>(rope)] = true;
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) c.ropes[i] = {};
  }
}

}  // namespace

std::vector<Difference> differences(Config a, Config b) {
  drop_unused_ropes(a);
  drop_unused_ropes(b);
  Comparison comparison;
  comparison.compare(a, b);
  return std::move(comparison.found);
}

}  // namespace pumice::model
