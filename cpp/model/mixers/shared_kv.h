// Tells each layer where the keys and values are that it attends to: in a cache, in the layer's own slot or, if they are those of an
// earlier layer (Attention::kv_from), in a view that keeps them for later layers. Rows between pipeline stages carry the keys and values
// that layers of later stages attend to.
#pragma once

#include <map>
#include <vector>

#include "model/writer.h"

namespace pumice::model {

class SharedKv {
 public:
  // For a program whose layers end before layer `last`. If `cached` is true, keys and values are stored in caches. If `for_sides` is true,
  // side parts attend to the caches, too (SidePart::reads). These caches are in the program that ends with the trunk's last layer.
  SharedKv(Writer& writer, bool cached, std::size_t last, bool for_sides);

  // Returns how many columns of a row that enters layer `border` are keys and values. These are the keys and values of each earlier layer
  // that layer `border` or a later layer attends to.
  std::int32_t width(std::size_t border) const;
  // Takes these columns from a row of the stage before. If layers of this program attend to them, stores them in this program's caches.
  void take(View columns, std::size_t border);
  // Returns the views that the next stage needs in these columns, in the same order.
  std::vector<View> give(std::size_t border) const;

  // Sets the members of `op` that say where the layer's keys and values are, and stores the layer's own keys and values in the cache. `v`
  // must follow `k` in the same slot.
  void attend(std::size_t layer, const Attention& attention, const View& k, const View& v, Attend& op);
  // The same for a layer that always has keys and values of its own, which may be any views.
  void attend_own(std::size_t layer, const CacheShape& shape, const View& k, const View& v, Attend& op);
  // Stores the layer's keys and values in a cache of the program.
  void store(std::size_t layer, const CacheShape& shape, const View& k, const View& v);
  // Copies the layer's own keys and values if later layers need them and no cache of this program holds them, because the next layer
  // overwrites their slot. Called after attend().
  void keep(std::size_t layer, const View& k);

  // This program's caches, by layer. The programs of a side part that attends to the trunk's layers get the trunk's caches (use_caches).
  const std::map<std::size_t, CacheId>& caches() const { return caches_; }
  void use_caches(std::map<std::size_t, CacheId> caches) { caches_ = std::move(caches); }

 private:
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;

  Writer& w_;
  const bool cached_;
  const std::size_t last_;
  std::vector<std::size_t> read_later_;  // the layers whose keys and values side parts attend to
  std::map<std::size_t, CacheId> caches_;
  std::map<std::size_t, View> kept_;  // keys, followed by values, that later layers attend to; by layer
};

}  // namespace pumice::model
