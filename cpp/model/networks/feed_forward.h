// Writes the operations of a feed-forward network or of a shared expert, with or without a gate, up to and including the activation.
// BranchEnd::product of the result is the role of the last matrix, which the caller must apply.
#pragma once

#include "model/writer.h"

namespace pumice::model {

struct FeedForwardRoles {
  Role gate, up, down;
};

class FeedForwardNetwork {
 public:
  // Allocates a slot as wide as the widest layer needs. Narrower layers use the first columns of this slot.
  explicit FeedForwardNetwork(Writer& writer);

  BranchEnd write(std::size_t layer, const FeedForward& network, const View& in,
                  const FeedForwardRoles& roles = {Role::gate, Role::up, Role::down});

 private:
  Writer& w_;
  View wide_;
  View gate_;  // the gate's product, if an adapter is added to it or a number multiplies it before the activation
};

}  // namespace pumice::model
