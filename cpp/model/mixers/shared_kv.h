// Finds the keys and values that each layer attends to. In a program with caches they are in a cache. In a program without caches they are
// in the layer's own slot or, if they are those of an earlier layer (Attention::kv_from), in a view that was kept for later layers. Rows
// between pipeline stages have columns for keys and values that layers of later stages attend to.
#pragma once

#include <map>
#include <vector>

#include "model/writer.h"

namespace pumice::model {

class SharedKv {
 public:
  // The program's last layer is `last` - 1. If `cached` is true, the program stores keys and values in caches. If `for_sides` is true, side
  // parts also attend to some of these keys and values (SidePart::reads), in the caches of the program that ends with the trunk's last
  // layer.
  SharedKv(Writer& writer, bool cached, std::size_t last, bool for_sides);

  // Returns how many columns of a row that enters layer `border` are keys and values. These are the keys and values of all earlier layers
  // that layer `border` or a later layer attends to.
  std::int32_t width(std::size_t border) const;
  // Sets the views of kept keys and values to these columns of the program's input row. If layers of this program attend to them, also
  // stores them in this program's caches.
  void take(View columns, std::size_t border);
  // Returns the views of the keys and values that the next stage needs in its columns, in the order of the columns.
  std::vector<View> give(std::size_t border) const;

  // Sets the members of `op` that refer to the layer's keys and values, and stores the layer's own keys and values in the cache. `v` must
  // follow `k` in the same slot.
  void attend(std::size_t layer, const Attention& attention, const View& k, const View& v, Attend& op);
  // Does what attend() does, for a layer that always has keys and values of its own. `k` and `v` may be any views.
  void attend_own(std::size_t layer, const CacheShape& shape, const View& k, const View& v, Attend& op);
  // Stores the layer's keys and values in a cache of the program.
  void store(std::size_t layer, const CacheShape& shape, const View& k, const View& v);
  // Copies the layer's own keys and values to another slot if later layers need them and no cache of this program holds them. Without the
  // copy the next layer would overwrite them. Must be called after attend().
  void keep(std::size_t layer, const View& k);

  // The cache of each layer of this program. A program of an assistant has no caches of its own; use_caches() sets those of the trunk.
  const std::map<std::size_t, CacheId>& caches() const { return caches_; }
  void use_caches(std::map<std::size_t, CacheId> caches) { caches_ = std::move(caches); }

 private:
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;

  Writer& w_;
  const bool cached_;
  const std::size_t last_;
  std::vector<std::size_t> read_later_;  // layers of the trunk whose keys and values side parts attend to
  std::map<std::size_t, CacheId> caches_;
  std::map<std::size_t, View> kept_;  // for each layer: the view of its keys, followed by its values, that later layers attend to
};

}  // namespace pumice::model
