// Writes the operations of LayerInputs. These are columns that each layer reads beside the hidden row (Gemma 4 E2B, E4B). For each token,
// the columns for all layers are computed once, at the beginning, from the token's embedding. A row that passes from one pipeline stage to
// the next contains the columns for all layers that follow.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  // Adds operations that compute the columns for all layers from the embeddings `x`, if the model has LayerInputs.
  void embed(const View& x);

  // A row that enters layer `border` from an earlier stage contains the columns for this layer and all layers after it. width() returns the
  // number of these columns. take() sets their view in the input row of a program that begins with layer `border`. give() returns their
  // view in a program that ends before layer `border`.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // Adds operations that compute x += norm(W (scale * input * activation(G x))), where `input` is the layer's columns, G is the matrix of
  // Role::input_gate, and W that of Role::input_out. LayerInputs has `scale` and `activation`. Overwrites `h`, a slot as wide as x.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // the columns for layer first_ and all layers after it
  std::size_t first_ = 0;  // first layer of the program
  View gate_;
};

}  // namespace pumice::model
