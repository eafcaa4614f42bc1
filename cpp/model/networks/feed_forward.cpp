#include "model/networks/feed_forward.h"

#include <algorithm>

namespace pumice::model {

FeedForwardNetwork::FeedForwardNetwork(Writer& writer) : w_(writer) {
  std::int32_t width = 0;
  for (std::size_t i = 0; i < w_.c.all_layers(); ++i) {
    const Layer& layer = w_.c.layer(i);
    if (layer.if_feed_forward()) width = std::max(width, layer.if_feed_forward()->width);
    if (layer.if_mixture() && layer.if_mixture()->shared) width = std::max(width, layer.if_mixture()->shared->network.width);
  }
  if (width > 0) wide_ = w_.slot(Rows::tokens, width);
}

BranchEnd FeedForwardNetwork::write(std::size_t layer, const FeedForward& f, const View& in, const FeedForwardRoles& roles) {
  const View wide = Writer::part(wide_, 0, f.width);
  const Parameter &gate = w_.d.at(layer, roles.gate), &up = w_.d.at(layer, roles.up);
  const float gate_scale = f.multipliers ? f.multipliers->in : 1;
  if (f.gated && (gate_scale != 1 || gate.lora_a != MatrixId::none || up.lora_a != MatrixId::none)) {
    if (!gate_) gate_ = w_.slot(Rows::tokens, wide_.width);
    const View opened = Writer::part(gate_, 0, f.width);
    w_.linear(in, opened, {gate}, {.scale = gate_scale});
    w_.linear(in, wide, {up});
    w_.add(Multiply{.a = wide, .b = opened, .out = wide, .activation = f.activation});
  } else if (f.gated) {
    w_.add(GatedLinear{.in = in,
                       .out = wide,
                       .gate = gate.matrix,
                       .up = up.matrix,
                       .gate_bias = gate.bias,
                       .up_bias = up.bias,
                       .activation = f.activation});
  } else {
    Linear op{.activation = f.activation};
    if (f.xielu) {
      op.alpha_p = f.xielu->alpha_p;
      op.alpha_n = f.xielu->alpha_n;
    }
    w_.linear(in, wide, {up}, std::move(op));
  }
  return {wide, roles.down, f.multipliers ? f.multipliers->out : 1};
}

}  // namespace pumice::model
