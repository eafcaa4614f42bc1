// Writes the operations of LayerInputs (Gemma 4 E2B, E4B), each layer's second input per token. All layers' inputs are computed once, from
// the token's embedding. Rows between pipeline stages carry the columns of the layers that follow.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  void embed(const View& x);  // computes them for all layers, if the model has such inputs

  // Returns how many columns of a row that enters layer `border` are layer inputs. take() reads them there, give() returns their view.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // x += norm(W (input * activation(gate x))). Overwrites `h`, a slot as wide as x.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // columns of layers from first_ on
  std::size_t first_ = 0;  // 0 if the program begins with ids
  View gate_;
};

}  // namespace pumice::model
