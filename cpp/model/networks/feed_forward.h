// Writes the operations of a feed-forward network, or of a shared expert, up to and including its activation, with or without a gate.
// BranchEnd::product names the matrix that follows.
#pragma once

#include "model/writer.h"

namespace pumice::model {

struct FeedForwardRoles {
  Role gate, up, down;
};

class FeedForwardNetwork {
 public:
  // Allocates a slot as wide as the widest layer needs; narrower layers use its first columns.
  explicit FeedForwardNetwork(Writer& writer);

  BranchEnd write(std::size_t layer, const FeedForward& network, const View& in,
                  const FeedForwardRoles& roles = {Role::gate, Role::up, Role::down});

 private:
  Writer& w_;
  View wide_;
  View gate_;  // holds the gate's product if an adapter is added to it, or if it is multiplied, before the activation
};

}  // namespace pumice::model
