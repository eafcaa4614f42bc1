// LayerInputs (Gemma 4 E2B, E4B): what each layer gets of a token besides the row. It is computed once, from the embedded row; a row that
// goes from one stage to the next carries the columns of later layers.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  void embed(const View& x);  // for all layers, where the model has such inputs

  // The columns in a row before layer `border`.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // x += norm(W (input * activation(gate x))). `h`: a slot as wide as x, which it changes.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // of the layers from first_ on
  std::size_t first_ = 0;  // 0 where the program begins with ids
  View gate_;
};

}  // namespace pumice::model
