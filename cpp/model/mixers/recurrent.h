// Writes the operations of a state space model or linear attention (Recurrent): the projections to q, k, v, gates and steps, the
// convolution, the recurrence, and the norm and the gate of its output.
#pragma once

#include "model/mixers/states.h"

namespace pumice::model {

class RecurrentMixer {
 public:
  // Allocates slots as wide as the widest layer needs. Narrower layers use the first columns of these slots.
  RecurrentMixer(Writer& writer, States& states);

  // `in` is the layer's input after the mixer's norm. BranchEnd::product of the result is the role of the output projection, which the
  // caller must apply.
  BranchEnd write(std::size_t layer, const Recurrent& recurrent, const View& in);

 private:
  struct Parts {
    View qkv, gate, step, beta;  // neighbouring columns of one slot; `beta` is empty except with the delta rule
  };
  void project(std::size_t layer, const Recurrent& r, const View& in);
  void convolve(std::size_t layer, const Recurrent& r, const View& in, const View& out);
  void scan(std::size_t layer, const Recurrent& r, const View& qkv, const Parts& parts, const View& out);
  void close(std::size_t layer, const Recurrent& r, const View& gate, const View& out);

  Writer& w_;
  States& states_;
  View parts_, mixed_, scanned_;  // the projections; q, k and v after the convolution; the output of the recurrence
};

}  // namespace pumice::model
