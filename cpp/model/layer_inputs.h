// Writes the operations of LayerInputs, the second input that each layer has for each token (Gemma 4 E2B, E4B). The inputs of all layers
// are computed once, at the beginning, from the token's embedding. A row that passes from one pipeline stage to the next contains the
// inputs of all layers that follow.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  // Adds operations that compute the inputs of all layers from the embeddings `x`, if the model has such inputs.
  void embed(const View& x);

  // Layer inputs are some columns of a row that enters layer `border` from an earlier stage. width() returns the number of these columns.
  // take() sets the view of these columns in the program's input row. give() returns the view of the inputs of layer `border` and all
  // layers after it.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // Adds operations that compute x += norm(W (input * activation(gate x))) for the layer's input. Overwrites `h`, a slot as wide as x.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // the inputs of layer first_ and all layers after it
  std::size_t first_ = 0;  // first layer of the program
  View gate_;
};

}  // namespace pumice::model
