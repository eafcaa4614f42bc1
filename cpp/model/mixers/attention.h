// Attention: queries, keys and values of the row, their norms and rope, and what each query makes of keys and values.
#pragma once

#include "model/mixers/shared_kv.h"

namespace pumice::model {

class AttentionMixer {
 public:
  // Takes slots as wide as the widest layer needs; layers use their first columns.
  AttentionMixer(Writer& writer, SharedKv& kv);

  // From a row that is normalised to what all heads give.
  BranchEnd write(std::size_t layer, const Attention& attention, const View& in);

 private:
  struct Heads {
    View q, k, v;  // side by side
  };
  void project(std::size_t layer, const Attention& a, const View& in, const Heads& heads);
  void norm_heads(std::size_t layer, const Attention& a, const Heads& heads);
  void turn(const Attention& a, const Heads& heads);
  void attend(std::size_t layer, const Attention& a, const Heads& heads, const View& out);

  Writer& w_;
  SharedKv& kv_;
  View qkv_, attended_;
};

}  // namespace pumice::model
