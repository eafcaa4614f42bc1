// Writes the operations of multi-head latent attention (LatentAttention). The matrices that expand a latent vector to keys and values are
// absorbed: the one of keys multiplies the queries, and the one of values multiplies what attention gives. So all heads share one head of
// keys, [turned columns, latent], and its values are the latent columns. Prompts and single tokens run the same operations, so they have
// the same bits.
#pragma once

#include "model/mixers/shared_kv.h"

namespace pumice::model {

class LatentAttentionMixer {
 public:
  // Allocates slots as wide as the widest layer needs.
  LatentAttentionMixer(Writer& writer, SharedKv& kv);

  // `in` is the layer's input after its norm. Returns the outputs of all heads and the role of the matrix that projects them back to
  // hidden_size.
  BranchEnd write(std::size_t layer, const LatentAttention& latent, const View& in);

 private:
  View queries(std::size_t layer, const LatentAttention& t, const View& in);
  View keys(std::size_t layer, const LatentAttention& t, const View& in);

  Writer& w_;
  SharedKv& kv_;
  View q_low_, q_plain_, q_, k_, attended_, out_;
};

}  // namespace pumice::model
