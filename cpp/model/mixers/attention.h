// Writes the operations of attention: the projections to queries, keys and values, the norms and the rope of queries and keys, and the
// attention itself.
#pragma once

#include "model/mixers/shared_kv.h"

namespace pumice::model {

class AttentionMixer {
 public:
  // Allocates slots as wide as the widest layer needs. Narrower layers use the first columns of these slots.
  AttentionMixer(Writer& writer, SharedKv& kv);

  // `in` is the layer's input after the mixer's norm. Returns the outputs of all heads, and the role of the matrix that projects them back
  // to hidden_size.
  BranchEnd write(std::size_t layer, const Attention& attention, const View& in);
  // Writes only the operations that compute keys and values and store them in a cache. The layer must have matrices for both.
  void store(std::size_t layer, const Attention& attention, const View& in);

 private:
  struct Heads {
    View q, gate, k, v;  // neighbouring columns of one slot; `gate` is empty without Attention::gate
  };
  Heads heads_of(const Attention& a) const;
  void project(std::size_t layer, const Attention& a, const View& in, const Heads& heads);
  void norm_heads(std::size_t layer, const Attention& a, const Heads& heads);
  void norm_keys(std::size_t layer, const Attention& a, const View& k);
  void turn(const Attention& a, const Heads& heads);
  void turn_keys(const Attention& a, const View& k);
  void attend(std::size_t layer, const Attention& a, const Heads& heads, const View& out);

  Writer& w_;
  SharedKv& kv_;
  View qkv_, attended_;
};

}  // namespace pumice::model
