// Writes the operations of LayerInputs, the second input that each layer has per token (Gemma 4 E2B, E4B). The inputs of all layers are
// computed once, from the token's embedding. A row that passes from one pipeline stage to the next carries the inputs of the layers that
// follow.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class LayerInputsWriter {
 public:
  explicit LayerInputsWriter(Writer& writer) : w_(writer) {}

  // Adds operations that compute the inputs of all layers from the embeddings `x`, if the model has such inputs.
  void embed(const View& x);

  // width() returns how many columns of a row that enters layer `border` are layer inputs. take() sets the view of these columns in the row
  // that enters the program at layer `border`. give() returns the view of the inputs of layer `border` and the layers after it.
  std::int32_t width(std::size_t border) const;
  void take(const View& columns, std::size_t border);
  View give(std::size_t border) const;

  // Adds operations that compute x += norm(W (input * activation(gate x))). Overwrites `h`, a slot as wide as x.
  void write(std::size_t layer, const View& x, const View& h);

 private:
  Writer& w_;
  View inputs_;            // the columns of layer first_ and the layers after it
  std::size_t first_ = 0;  // 0 if the program begins with ids
  View gate_;
};

}  // namespace pumice::model
