#include "model/networks/mixture.h"

#include <algorithm>
#include <cmath>

namespace pumice::model {

MixtureNetwork::MixtureNetwork(Writer& writer, FeedForwardNetwork& feed_forward) : w_(writer), feed_forward_(feed_forward) {
  std::int32_t experts = 0, chosen = 0;
  bool opened = false, own_norms = false;
  for (std::size_t i = 0; i < w_.c.all_layers(); ++i) {
    const Layer& layer = w_.c.layer(i);
    const Mixture* mixture = layer.if_mixture();
    if (!mixture) continue;
    experts = std::max(experts, mixture->router.experts);
    chosen = std::max(chosen, mixture->router.chosen);
    opened = opened || (mixture->shared && mixture->shared->opened);
    own_norms = own_norms || mixture->own_norms.has_value();
  }
  if (experts == 0) return;
  logits_ = w_.slot(Rows::tokens, experts);
  route_ = w_.slot(Rows::tokens, 2 * chosen);
  if (opened) opening_ = w_.slot(Rows::tokens, 1);
  if (!own_norms) return;
  own_ = w_.slot(Rows::tokens, w_.c.hidden_size);
  sum_ = w_.slot(Rows::tokens, w_.c.hidden_size);
  of_experts_ = w_.slot(Rows::tokens, w_.c.hidden_size);
}

std::vector<BranchEnd> MixtureNetwork::write(std::size_t layer, const Mixture& x, const View& in, const View& row) {
  if (!x.own_norms) {
    route(layer, x, in, 1);
    return parts(layer, x, in, in);
  }
  w_.norm(w_.d.at(layer, Role::router_norm), row, own_);
  route(layer, x, own_, 1 / std::sqrt(static_cast<float>(w_.c.hidden_size)));
  w_.norm(w_.d.at(layer, Role::expert_norm), row, own_);
  const std::vector<BranchEnd> ends = parts(layer, x, in, own_);
  if (ends.size() != 2) fail(ErrorKind::unsupported_model, "a mixture with norms of its own needs a shared expert");
  if (x.combine == Combine::biased) fail(ErrorKind::unsupported_model, "a mixture with norms of its own has no bias of the experts' sum");
  w_.linear(ends[0].rows, sum_, {w_.d.at(layer, *ends[0].product)}, {.scale = ends[0].scale});
  w_.norm(w_.d.at(layer, Role::shared_branch_norm), sum_, sum_);
  Experts op = *ends[1].experts;
  op.out = of_experts_;
  op.scale *= ends[1].scale;
  w_.add(op);
  w_.norm(w_.d.at(layer, Role::expert_branch_norm), of_experts_, sum_, sum_);
  return {{.rows = sum_}};
}

// Writes the operations that choose the experts of each row of `in`.
void MixtureNetwork::route(std::size_t layer, const Mixture& x, const View& in, float scale) {
  const Router& r = x.router;
  const View logits = Writer::part(logits_, 0, r.experts), route = Writer::part(route_, 0, 2 * r.chosen);
  const auto vector = [&](Role role) { return w_.d.at(layer, role).vector; };
  w_.linear(in, logits, {w_.d.at(layer, Role::router)}, {.precise = true, .scale = scale, .softcap = r.softcap});
  w_.add(Route{.logits = logits,
               .out = route,
               .chosen = r.chosen,
               .groups = r.groups,
               .kept = r.kept,
               .score = r.score,
               .bias = vector(Role::router_choice_bias),
               .scales = vector(Role::router_scales),
               .normalised = r.normalised,
               .floor = r.floor,
               .scale = r.scale});
}

// Writes the operations of the shared expert, if there is one, and of the experts. Returns their ends (BranchEnd), the shared expert's
// first. `in` is the input of the shared expert, and `to_experts` the input of the experts.
std::vector<BranchEnd> MixtureNetwork::parts(std::size_t layer, const Mixture& x, const View& in, const View& to_experts) {
  std::vector<BranchEnd> ends;
  const float scale = x.combine == Combine::averaged ? 0.5f : 1.0f;
  if (x.shared) {
    const FeedForwardRoles roles{Role::shared_gate, Role::shared_up, Role::shared_down};
    BranchEnd& end = ends.emplace_back(feed_forward_.write(layer, x.shared->network, in, roles));
    end.scale *= scale;
    if (x.shared->opened) {
      w_.linear(in, opening_, {w_.d.at(layer, Role::shared_opening)}, {.precise = true});
      w_.add(Multiply{.a = end.rows, .b = opening_, .out = end.rows, .activation = Activation::sigmoid});
    }
  }
  const Parameter &gate = w_.d.at(layer, Role::expert_gate), &up = w_.d.at(layer, Role::expert_up),
                  &down = w_.d.at(layer, Role::expert_down);
  const Clamp clamp = x.clamp.value_or(Clamp{});
  ends.push_back({.scale = scale,
                  .experts = Experts{.in = to_experts,
                                     .route = Writer::part(route_, 0, 2 * x.router.chosen),
                                     .out = {},
                                     .residual = {},
                                     .gate = gate.matrix,
                                     .up = up.matrix,
                                     .down = down.matrix,
                                     .gate_bias = gate.bias,
                                     .up_bias = up.bias,
                                     .down_bias = down.bias,
                                     .activation = x.activation,
                                     .limit = clamp.limit,
                                     .shift = clamp.shift,
                                     .weighs_input = x.combine == Combine::inputs},
                  .addend = x.combine == Combine::biased ? std::optional(Role::expert_sum_bias) : std::nullopt});
  return ends;
}

}  // namespace pumice::model
