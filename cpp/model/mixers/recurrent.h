// Writes the operations of a state space model or linear attention (Recurrent): the product that gives q, k, v, gates and steps, the
// convolution, the recurrence, its norm and its gate.
#pragma once

#include "model/mixers/states.h"

namespace pumice::model {

class RecurrentMixer {
 public:
  // Allocates slots as wide as the widest layer needs; narrower layers use their first columns.
  RecurrentMixer(Writer& writer, States& states);

  // `in` is the layer's input after its norm. BranchEnd::product names the matrix that follows.
  BranchEnd write(std::size_t layer, const Recurrent& recurrent, const View& in);

 private:
  struct Parts {
    View qkv, gate, step, beta;  // neighbouring columns of one slot; beta only with the delta rule
  };
  void project(std::size_t layer, const Recurrent& r, const View& in);
  void convolve(std::size_t layer, const Recurrent& r, const View& in, const View& out);
  void scan(std::size_t layer, const Recurrent& r, const View& qkv, const Parts& parts, const View& out);
  void close(std::size_t layer, const Recurrent& r, const View& gate, const View& out);

  Writer& w_;
  States& states_;
  View parts_, mixed_, scanned_;  // the product, q, k and v after the convolution, and what the recurrence gives
};

}  // namespace pumice::model
