// Tells each layer where its keys and values are: in a cache, in the layer's own slot, or in an earlier layer's (Attention::kv_from). Rows
// between pipeline stages carry the keys and values that layers of later stages attend to.
#pragma once

#include <map>
#include <vector>

#include "model/writer.h"

namespace pumice::model {

class SharedKv {
 public:
  // For a program that ends before layer `last`. If `cached`, keys and values are stored in caches.
  SharedKv(Writer& writer, bool cached, std::size_t last) : w_(writer), cached_(cached), last_(last) {}

  // Returns how many columns of a row that enters layer `border` are keys and values: those of each earlier layer that `border` or a later
  // layer attends to.
  std::int32_t width(std::size_t border) const;
  // Finds these columns in a row from the stage before, and stores them in this program's caches if its layers attend to them.
  void take(View columns, std::size_t border);
  std::vector<View> give(std::size_t border) const;

  // Sets in `op` where the layer's keys and values are, and stores the layer's own in the cache. `v` follows `k` in the same slot.
  void attend(std::size_t layer, const Attention& attention, const View& k, const View& v, Attend& op);
  // Copies the layer's own keys and values, after attention, if later layers need them and no cache of this program holds them.
  void keep(std::size_t layer, const View& k);

 private:
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;
  void store(std::size_t layer, const Attention& attention, const View& k, const View& v);

  Writer& w_;
  const bool cached_;
  const std::size_t last_;
  std::map<std::size_t, CacheId> caches_;  // this program's caches, by layer
  std::map<std::size_t, View> kept_;       // keys, then values, by layer
};

}  // namespace pumice::model
