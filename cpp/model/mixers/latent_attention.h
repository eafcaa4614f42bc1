// Writes the operations of multi-head latent attention (LatentAttention). Latent vectors are not expanded to keys and values. Instead,
// queries are multiplied by the matrix for keys, and the output of attention by the matrix for values. So all heads share a single kv head.
// Its key has the columns [rotated columns, latent vector], and its value is the latent vector. Prompts and single tokens run the same
// operations, so their results have the same bits.
#pragma once

#include "model/mixers/shared_kv.h"

namespace pumice::model {

class LatentAttentionMixer {
 public:
  // Allocates slots as wide as the widest layer needs. Narrower layers use the first columns of these slots.
  LatentAttentionMixer(Writer& writer, SharedKv& kv);

  // `in` is the layer's input after the mixer's norm. Returns the outputs of all heads, and the role of the matrix that projects them back
  // to hidden_size.
  BranchEnd write(std::size_t layer, const LatentAttention& latent, const View& in);

 private:
  View queries(std::size_t layer, const LatentAttention& t, const View& in);
  View keys(std::size_t layer, const LatentAttention& t, const View& in);

  Writer& w_;
  SharedKv& kv_;
  View q_low_, q_plain_, q_, k_, attended_, out_;
};

}  // namespace pumice::model
