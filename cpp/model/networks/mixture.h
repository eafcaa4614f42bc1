// MixtureNetwork writes the operations of a mixture of experts: the router's logits, Route, the shared expert, and Experts.
#pragma once

#include <vector>

#include "model/networks/feed_forward.h"
#include "model/writer.h"

namespace pumice::model {

class MixtureNetwork {
 public:
  // Adds slots (buffers for rows) to the program. They are as wide as the widest layer needs, and narrower layers use their first columns.
  // `feed_forward` writes shared experts.
  MixtureNetwork(Writer& writer, FeedForwardNetwork& feed_forward);

  // Writes the mixture's operations except for the last steps. Returns these steps, which the caller must write and whose results it must
  // add. The last step is the Experts operation, which reads `in`. With Mixture::own_norms, this function writes all operations and
  // returns one step, whose rows are the mixture's output. `in` is the layer's input after the network's norm, `row` before that norm.
  std::vector<BranchEnd> write(std::size_t layer, const Mixture& mixture, const View& in, const View& row);

 private:
  void route(std::size_t layer, const Mixture& mixture, const View& in, float scale);
  std::vector<BranchEnd> parts(std::size_t layer, const Mixture& mixture, const View& in, const View& to_experts);

  Writer& w_;
  FeedForwardNetwork& feed_forward_;
  View logits_, route_, opening_;
  View own_, sum_, of_experts_;  // for Mixture::own_norms: own_ is a normalised row, sum_ the output, of_experts_ the experts' output
};

}  // namespace pumice::model
