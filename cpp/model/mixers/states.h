// Adds states to a program, and numbers them. Operations that carry data from row to row (Conv, Scan) need a state.
#pragma once

#include "model/writer.h"

namespace pumice::model {

class States {
 public:
  // If `kept` is true, states are kept from run to run. Otherwise the program computes whole texts, so its operations begin with zeros and
  // store no state.
  States(Writer& writer, bool kept) : w_(writer), kept_(kept) {}

  StateId add(const StateShape& shape) {
    if (!kept_) return StateId::none;
    w_.program.states.push_back(shape);
    return static_cast<StateId>(w_.program.states.size() - 1);
  }

 private:
  Writer& w_;
  const bool kept_;
};

}  // namespace pumice::model
