// Writes the operations of a mixture of experts: the router's product, Route, the shared expert, and Experts.
#pragma once

#include <vector>

#include "model/networks/feed_forward.h"
#include "model/writer.h"

namespace pumice::model {

class MixtureNetwork {
 public:
  // Allocates slots for the layer that needs most; other layers use their first columns. `feed_forward` writes shared experts.
  MixtureNetwork(Writer& writer, FeedForwardNetwork& feed_forward);

  // Returns the ends of the parts, whose sum is the mixture's output. The last one is Experts, which reads `in`.
  std::vector<BranchEnd> write(std::size_t layer, const Mixture& mixture, const View& in);

 private:
  Writer& w_;
  FeedForwardNetwork& feed_forward_;
  View logits_, route_, opening_;
};

}  // namespace pumice::model
