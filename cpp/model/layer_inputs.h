// Writes the operations of LayerInputs, which are columns that each layer reads beside the hidden row (Gemma 4 E2B, E4B). For each token,
// the columns for all layers are computed once, at the beginning, from the token's embedding. A row that passes from one pipeline stage to
// the next also has the columns for all layers that follow.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  // If the model has LayerInputs, adds operations that compute the columns for all layers from the embeddings `x`.
  void embed(const View& x);

  // A row that enters layer `border` from an earlier stage has the columns for this layer and all layers after it. width() returns the
  // number of these columns. take() is for a program that begins with layer `border`, and sets the place of these columns in its input row.
  // give() is for a program that ends before layer `border`, and returns the view of these columns.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // Adds operations that compute x += norm(W (scale * input * activation(G x))). `input` is the layer's columns, G and W are the matrices
  // of Role::input_gate and Role::input_out, and LayerInputs has `scale` and `activation`. Overwrites `h`, a slot as wide as x.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // the columns for layer first_ and all layers after it
  std::size_t first_ = 0;  // first layer of the program
  View gate_;
};

}  // namespace pumice::model
