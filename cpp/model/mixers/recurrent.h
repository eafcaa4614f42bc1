// RecurrentMixer writes the operations of a layer's state space model or linear attention (Recurrent in model/layer.h). These are the
// projections of the input, the convolution over q, k and v, the recurrence, and the norm and the gate after it.
#pragma once

#include "model/mixers/states.h"

namespace pumice::model {

class RecurrentMixer {
 public:
  // Adds slots (buffers for rows) to the program. They are as wide as the widest layer needs, and narrower layers use their first columns.
  RecurrentMixer(Writer& writer, States& states);

  // Writes the operations of the mixer, except for its last matrix. `in` is the layer's input after the mixer's norm. The caller must apply
  // the last matrix, whose role is in the result's BranchEnd::product.
  BranchEnd write(std::size_t layer, const Recurrent& recurrent, const View& in);

 private:
  struct Parts {
    View qkv, gate, step, beta;  // results of the projections, side by side in one slot; `beta` is empty except with the delta rule
  };
  void project(std::size_t layer, const Recurrent& r, const View& in);
  void convolve(std::size_t layer, const Recurrent& r, const View& in, const View& out);
  void scan(std::size_t layer, const Recurrent& r, const View& qkv, const Parts& parts, const View& out);
  void close(std::size_t layer, const Recurrent& r, const View& gate, const View& out);

  Writer& w_;
  States& states_;
  // parts_ has the results of the projections, mixed_ has q, k and v after the convolution, and scanned_ has the output of the recurrence.
  View parts_, mixed_, scanned_;
};

}  // namespace pumice::model
