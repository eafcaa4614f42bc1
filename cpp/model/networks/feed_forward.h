// FeedForwardNetwork writes the operations of a feed-forward network or of a shared expert, with or without a gate, up to and including the
// activation. The caller must apply the last matrix, whose role is in the result's BranchEnd::product.
#pragma once

#include "model/writer.h"

namespace pumice::model {

struct FeedForwardRoles {
  Role gate, up, down;
};

class FeedForwardNetwork {
 public:
  // Adds a slot (a buffer for rows) to the program. It is as wide as the widest layer needs, and narrower layers use its first columns.
  explicit FeedForwardNetwork(Writer& writer);

  BranchEnd write(std::size_t layer, const FeedForward& network, const View& in,
                  const FeedForwardRoles& roles = {Role::gate, Role::up, Role::down});

 private:
  Writer& w_;
  View wide_;
  View gate_;  // product of the gate's matrix; used only if an adapter or a factor is applied to it before the activation
};

}  // namespace pumice::model
