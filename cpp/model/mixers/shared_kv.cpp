#include "model/mixers/shared_kv.h"

#include <algorithm>

namespace pumice::model {

SharedKv::SharedKv(Writer& writer, bool cached, std::size_t last, bool for_sides) : w_(writer), cached_(cached), last_(last) {
  for (const SidePart& side : w_.d.sides)
    if (for_sides) read_later_.insert(read_later_.end(), side.reads.begin(), side.reads.end());
}

std::int32_t SharedKv::width(std::size_t border) const {
  std::int32_t width = 0;
  for (const std::size_t layer : read_beyond(border)) width += 2 * w_.c.layers[layer].attention().kv_width();
  return width;
}

// Returns the layers before layer `border` whose keys and values are needed by layer `border`, by a later layer, or by an assistant.
std::vector<std::size_t> SharedKv::read_beyond(std::size_t border) const {
  std::vector<std::size_t> layers;
  for (std::size_t layer = border; layer < w_.c.layers.size(); ++layer) {
    const std::size_t from = w_.c.cache_of(layer);
    if (from < border && std::ranges::find(layers, from) == layers.end()) layers.push_back(from);
  }
  for (const std::size_t from : read_later_)
    if (from < border && border < w_.c.layers.size() && std::ranges::find(layers, from) == layers.end()) layers.push_back(from);
  return layers;
}

// Returns true if a layer in [first, last), other than `layer` itself, attends to the keys and values of `layer`. If the range ends with
// the trunk's last layer, also returns true if an assistant attends to them.
bool SharedKv::read_in(std::size_t layer, std::size_t first, std::size_t last) const {
  for (std::size_t other = first; other < last; ++other) {
    if (other != layer && w_.c.cache_of(other) == layer) return true;
  }
  return first < last && last == w_.c.layers.size() && std::ranges::find(read_later_, layer) != read_later_.end();
}

void SharedKv::take(View columns, std::size_t border) {
  for (const std::size_t layer : read_beyond(border)) {
    const Attention& a = w_.c.layers[layer].attention();
    const View k = Writer::part(columns, columns.col, a.kv_width()), v = Writer::part(columns, k.col + k.width, k.width);
    kept_[layer] = Writer::part(columns, k.col, 2 * k.width);
    if (cached_ && read_in(layer, border, last_)) store(layer, a.cache_shape(), k, v);
    columns.col += 2 * k.width;
  }
}

std::vector<View> SharedKv::give(std::size_t border) const {
  std::vector<View> views;
  for (const std::size_t layer : read_beyond(border)) views.push_back(kept_.at(layer));
  return views;
}

void SharedKv::store(std::size_t layer, const CacheShape& shape, const View& k, const View& v) {
  caches_[layer] = static_cast<CacheId>(w_.program.caches.size());
  w_.program.caches.push_back(shape);
  w_.add(Store{.k = k, .v = v, .cache = caches_[layer]});
}

void SharedKv::attend(std::size_t layer, const Attention& a, const View& k, const View& v, Attend& op) {
  if (!a.kv_from) return attend_own(layer, a.cache_shape(), k, v, op);
  const std::size_t from = w_.c.cache_of(layer);
  if (cached_) {
    op.cache = caches_.at(from);
  } else {
    const View& kept = kept_.at(from);
    op.k = Writer::part(kept, kept.col, a.kv_width());
    op.v = Writer::part(kept, kept.col + a.kv_width(), a.kv_width());
  }
}

void SharedKv::attend_own(std::size_t layer, const CacheShape& shape, const View& k, const View& v, Attend& op) {
  if (cached_) {
    store(layer, shape, k, v);
    op.cache = caches_.at(layer);
  } else {
    op.k = k;
    op.v = v;
  }
}

void SharedKv::keep(std::size_t layer, const View& k) {
  if (!read_in(layer, cached_ ? last_ : layer + 1, w_.c.layers.size())) return;
  kept_[layer] = w_.slot(Rows::tokens, 2 * k.width);
  w_.scale(Writer::part(k, k.col, 2 * k.width), kept_[layer], 1);
}

}  // namespace pumice::model
