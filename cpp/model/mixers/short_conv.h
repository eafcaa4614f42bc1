// Writes the operations of a short convolution between two gates (ShortConv).
#pragma once

#include "model/mixers/states.h"

namespace pumice::model {

class ShortConvMixer {
 public:
  ShortConvMixer(Writer& writer, States& states);

  // Writes the operations of the mixer, except for its last matrix. `in` is the layer's input after the mixer's norm. The caller must apply
  // the last matrix, whose role is in the result's BranchEnd::product.
  BranchEnd write(std::size_t layer, const ShortConv& conv, const View& in);

 private:
  Writer& w_;
  States& states_;
  View parts_, mixed_;  // parts_: B, C and x side by side; mixed_: output of the convolution
};

}  // namespace pumice::model
