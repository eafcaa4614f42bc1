// Writes the operations of attention: projections to queries, keys and values, their norms and rope, and the attention itself.
#pragma once

#include "model/mixers/shared_kv.h"

namespace pumice::model {

class AttentionMixer {
 public:
  // Allocates slots as wide as the widest layer needs; narrower layers use their first columns.
  AttentionMixer(Writer& writer, SharedKv& kv);

  // `in` is the layer's input after its norm. Returns the outputs of all heads and the role of the matrix that projects them back to
  // hidden_size.
  BranchEnd write(std::size_t layer, const Attention& attention, const View& in);
  // Writes only what later rows attend to: computes keys and values and stores them in a cache. The layer must have both of its own.
  void store(std::size_t layer, const Attention& attention, const View& in);

 private:
  struct Heads {
    View q, gate, k, v;  // neighbouring columns of one slot; the gate only with Attention::gate
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
