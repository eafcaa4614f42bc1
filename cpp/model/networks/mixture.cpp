#include "model/networks/mixture.h"

#include <algorithm>

namespace pumice::model {

MixtureNetwork::MixtureNetwork(Writer& writer, FeedForwardNetwork& feed_forward) : w_(writer), feed_forward_(feed_forward) {
  std::int32_t experts = 0, chosen = 0;
  bool opened = false;
  for (const Layer& layer : w_.c.layers) {
    const Mixture* mixture = layer.if_mixture();
    if (!mixture) continue;
    experts = std::max(experts, mixture->router.experts);
    chosen = std::max(chosen, mixture->router.chosen);
    opened = opened || (mixture->shared && mixture->shared->opened);
  }
  if (experts == 0) return;
  logits_ = w_.slot(Rows::tokens, experts);
  route_ = w_.slot(Rows::tokens, 2 * chosen);
  if (opened) opening_ = w_.slot(Rows::tokens, 1);
}

std::vector<BranchEnd> MixtureNetwork::write(std::size_t layer, const Mixture& x, const View& in) {
  const Router& r = x.router;
  const View logits = Writer::part(logits_, 0, r.experts), route = Writer::part(route_, 0, 2 * r.chosen);
  const auto vector = [&](Role role) { return w_.d.at(layer, role).vector; };
  w_.linear(in, logits, {w_.d.at(layer, Role::router)}, {.precise = true});
  w_.add(Route{.logits = logits,
               .out = route,
               .chosen = r.chosen,
               .groups = r.groups,
               .kept = r.kept,
               .score = r.score,
               .bias = vector(Role::router_choice_bias),
               .normalised = r.normalised,
               .floor = r.floor,
               .scale = r.scale});
  std::vector<BranchEnd> ends;
  if (x.shared) {
    const FeedForwardRoles roles{Role::shared_gate, Role::shared_up, Role::shared_down};
    const BranchEnd& end = ends.emplace_back(feed_forward_.write(layer, x.shared->network, in, roles));
    if (x.shared->opened) {
      w_.linear(in, opening_, {w_.d.at(layer, Role::shared_opening)}, {.precise = true});
      w_.add(Multiply{.a = end.rows, .b = opening_, .out = end.rows, .activation = Activation::sigmoid});
    }
  }
  const Parameter &gate = w_.d.at(layer, Role::expert_gate), &up = w_.d.at(layer, Role::expert_up),
                  &down = w_.d.at(layer, Role::expert_down);
  ends.push_back({.experts = Experts{.in = in,
                                     .route = route,
                                     .out = {},
                                     .residual = {},
                                     .gate = gate.matrix,
                                     .up = up.matrix,
                                     .down = down.matrix,
                                     .gate_bias = gate.bias,
                                     .up_bias = up.bias,
                                     .down_bias = down.bias,
                                     .activation = x.activation,
                                     .limit = x.limit,
                                     .shift = x.shift,
                                     .weighs_input = x.weighs_input}});
  return ends;
}

}  // namespace pumice::model
