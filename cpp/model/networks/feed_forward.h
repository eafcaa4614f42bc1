// The feed-forward network: a wide layer with an activation, gated or not. The product back is BranchEnd::product.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class FeedForwardNetwork {
 public:
  // Takes a slot as wide as the widest layer needs; layers use its first columns.
  explicit FeedForwardNetwork(Writer& writer);

  BranchEnd write(std::size_t layer, const FeedForward& network, const View& in);

 private:
  Writer& w_;
  View wide_;
  View gate_;  // where an adapter changes what the activation takes: the two products are apart
};

}  // namespace pumice::model
