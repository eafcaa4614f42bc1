// Writes the operations of a mixture of experts: the router's logits, Route, the shared expert, and Experts.
#pragma once

#include <vector>

#include "model/networks/feed_forward.h"
#include "model/writer.h"

namespace pumice::model {

class MixtureNetwork {
 public:
  // Allocates slots as wide as the widest layer needs. Narrower layers use the first columns of these slots. `feed_forward` writes shared
  // experts.
  MixtureNetwork(Writer& writer, FeedForwardNetwork& feed_forward);

  // Returns the ends of the mixture's parts; the sum of their results is the mixture's output. `in` is the layer's input after the
  // network's norm, and `row` is the input before that norm. The last end has BranchEnd::experts, an operation that reads `in`. With
  // Mixture::own_norms, the only end is the whole output.
  std::vector<BranchEnd> write(std::size_t layer, const Mixture& mixture, const View& in, const View& row);

 private:
  void route(std::size_t layer, const Mixture& mixture, const View& in, float scale);
  std::vector<BranchEnd> parts(std::size_t layer, const Mixture& mixture, const View& in, const View& to_experts);

  Writer& w_;
  FeedForwardNetwork& feed_forward_;
  View logits_, route_, opening_;
  View own_, sum_, of_experts_;  // with Mixture::own_norms: a normalised row, the output, the experts' output
};

}  // namespace pumice::model
