// SharedKv finds the keys and values that each layer attends to. A program with caches has them in a cache. In a program without caches, a
// layer with its own keys and values reads them from their slot. A layer that shares the keys and values of an earlier layer
// (Attention::kv_from) reads a copy that was kept for it. If the two layers are in different pipeline stages, the keys and values pass
// between the stages as columns of the rows.
#pragma once

#include <map>
#include <vector>

#include "model/writer.h"

namespace pumice::model {

class SharedKv {
 public:
  // The program's last layer is `last` - 1. If `cached` is true, the program stores keys and values in caches. If `for_sides` is true,
  // assistants also attend to keys and values of the trunk (SidePart::reads), so the last stage must have them in its caches.
  SharedKv(Writer& writer, bool cached, std::size_t last, bool for_sides);

  // Returns the number of columns for keys and values in a row that enters layer `border`. The row has the keys and values of those earlier
  // layers to which layer `border` or a later layer attends.
  std::int32_t width(std::size_t border) const;
  // Splits `columns` of the program's input row into the keys and values of earlier layers, and keeps their views. If layers of this
  // program attend to them, also stores them in this program's caches.
  void take(View columns, std::size_t border);
  // Returns the views of the keys and values that the stage from layer `border` on needs, in the order in which that stage expects them.
  std::vector<View> give(std::size_t border) const;

  // Sets the members of `op` that refer to the keys and values that this layer attends to. If the layer has keys and values of its own,
  // also stores them in a cache. `v` must follow `k` in the same slot.
  void attend(std::size_t layer, const Attention& attention, const View& k, const View& v, Attend& op);
  // Does what attend() does, for a layer that always has keys and values of its own. `k` and `v` may be any views.
  void attend_own(std::size_t layer, const CacheShape& shape, const View& k, const View& v, Attend& op);
  // Adds a cache for `layer` to the program, and an operation that stores `k` and `v` in it.
  void store(std::size_t layer, const CacheShape& shape, const View& k, const View& v);
  // Copies the layer's own keys and values to another slot if later layers need them and no cache of this program holds them. Without the
  // copy the next layer would overwrite them. Must be called after attend().
  void keep(std::size_t layer, const View& k);

  // caches() maps each layer of this program to its cache. An assistant's program has no caches of its own, so use_caches() sets the
  // trunk's caches.
  const std::map<std::size_t, CacheId>& caches() const { return caches_; }
  void use_caches(std::map<std::size_t, CacheId> caches) { caches_ = std::move(caches); }

 private:
  std::vector<std::size_t> read_beyond(std::size_t border) const;
  bool read_in(std::size_t layer, std::size_t first, std::size_t last) const;

  Writer& w_;
  const bool cached_;
  const std::size_t last_;
  std::vector<std::size_t> read_later_;  // layers of the trunk that assistants attend to
  std::map<std::size_t, CacheId> caches_;
  std::map<std::size_t, View> kept_;  // by layer: a view of its keys, followed by its values, for later layers
};

}  // namespace pumice::model
