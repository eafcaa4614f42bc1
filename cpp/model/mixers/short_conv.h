// Writes the operations of a short convolution between two gates (ShortConv).
#pragma once

#include "model/mixers/states.h"

namespace pumice::model {

class ShortConvMixer {
 public:
  ShortConvMixer(Writer& writer, States& states);

  // `in` is the layer's input after the mixer's norm. BranchEnd::product of the result is the role of the output projection, which the
  // caller must apply.
  BranchEnd write(std::size_t layer, const ShortConv& conv, const View& in);

 private:
  Writer& w_;
  States& states_;
  View parts_, mixed_;  // B, C and x side by side; the convolution's output
};

}  // namespace pumice::model
