#include "model/mixers/short_conv.h"

#include <algorithm>

namespace pumice::model {

ShortConvMixer::ShortConvMixer(Writer& writer, States& states) : w_(writer), states_(states) {
  if (std::ranges::none_of(w_.c.layers, [](const Layer& layer) { return layer.if_short_conv() != nullptr; })) return;
  parts_ = w_.slot(Rows::tokens, 3 * w_.c.hidden_size);
  mixed_ = w_.slot(Rows::tokens, w_.c.hidden_size);
}

BranchEnd ShortConvMixer::write(std::size_t layer, const ShortConv& conv, const View& in) {
  const std::int32_t width = w_.c.hidden_size;
  const View b = Writer::part(parts_, 0, width), c = Writer::part(parts_, width, width), x = Writer::part(parts_, 2 * width, width);
  const Parameter& taps = w_.d.at(layer, Role::conv_taps);
  w_.linear(in, parts_, {w_.d.at(layer, Role::conv_in)});
  w_.add(Multiply{.a = x, .b = b, .out = x});
  w_.add(Conv{.in = x,
              .out = mixed_,
              .taps = taps.vector,
              .bias = taps.bias,
              .width = conv.taps,
              .centred = !conv.causal,
              .state = states_.add({1, conv.taps - 1, width})});
  w_.add(Multiply{.a = mixed_, .b = c, .out = mixed_});
  return {mixed_, Role::conv_out};
}

}  // namespace pumice::model
