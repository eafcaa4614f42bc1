// What a layer gets from others than the one before it: keys and values that it shares with an earlier layer, and its part of LayerInputs
// (both Gemma 4). A row that goes from one stage to the next carries them behind its hidden columns.
#include <algorithm>

#include "model/builder.h"

namespace pumice::model {

void Builder::embed_inputs() {
  const LayerInputs& inputs = c_.layer_inputs;
  inputs_ = slot(Rows::tokens, inputs_width(0));
  const View projected = slot(Rows::tokens, inputs_.width);
  program_.ops.push_back(Embed{.out = inputs_, .tokens = d_.global(Role::inputs_embedding).matrix, .scale = inputs.embedding_scale});
  Linear op = make_linear(x_, projected, {d_.global(Role::inputs_projection)});
  op.scale = inputs.projection_scale;
  program_.ops.push_back(std::move(op));
  norm(d_.global(Role::inputs_norm), projected, inputs_, inputs_, inputs.width);
}

std::int32_t Builder::row_width(std::size_t border) const {
  std::int32_t width = c_.hidden_size + inputs_width(border);
  for (const std::size_t layer : read_beyond(border)) width += 2 * c_.layers[layer].attention.kv_width();
  return width;
}
std::int32_t Builder::inputs_width(std::size_t border) const {
  return c_.layer_inputs.width * static_cast<std::int32_t>(c_.layers.size() - border);
}
// Layers before the border whose keys and values layers from it on read.
std::vector<std::size_t> Builder::read_beyond(std::size_t border) const {
  std::vector<std::size_t> layers;
  for (std::size_t layer = border; layer < c_.layers.size(); ++layer) {
    const std::int32_t from = c_.layers[layer].attention.kv_from;
    if (from < 0 || static_cast<std::size_t>(from) >= border) continue;
    if (std::find(layers.begin(), layers.end(), static_cast<std::size_t>(from)) == layers.end())
      layers.push_back(static_cast<std::size_t>(from));
  }
  return layers;
}
// Do layers [first, last) read keys and values of this one?
bool Builder::read_in(std::size_t layer, std::size_t first, std::size_t last) const {
  for (std::size_t other = first; other < last; ++other) {
    if (c_.layers[other].attention.kv_from == static_cast<std::int32_t>(layer)) return true;
  }
  return false;
}

void Builder::take_row(std::size_t border) {
  program_.input = x_.slot;
  std::int32_t col = c_.hidden_size;
  for (const std::size_t layer : read_beyond(border)) {
    const std::int32_t width = c_.layers[layer].attention.kv_width();
    kept_[layer] = {x_.slot, col, 2 * width};
    if (cached_ && read_in(layer, border, last_)) store(layer, {x_.slot, col, width}, {x_.slot, col + width, width});
    col += 2 * width;
  }
  first_input_ = border;
  if (c_.layer_inputs.width > 0) inputs_ = {x_.slot, col, inputs_width(border)};
}

View Builder::give_row(std::size_t border) {
  const std::int32_t width = row_width(border);
  if (width == c_.hidden_size && program_.slots[static_cast<std::size_t>(x_.slot)].width == width) return x_;
  const View out = slot(Rows::tokens, width);
  std::int32_t col = 0;
  const auto copy = [&](const View& from) {
    scale(from, {out.slot, col, from.width}, 1);
    col += from.width;
  };
  copy(x_);
  for (const std::size_t layer : read_beyond(border)) copy(kept_.at(layer));
  if (const std::int32_t left = inputs_width(border); left > 0) copy({inputs_.slot, inputs_.col + inputs_.width - left, left});
  return out;
}

void Builder::store(std::size_t layer, const View& k, const View& v) {
  const Attention& a = c_.layers[layer].attention;
  caches_[layer] = static_cast<CacheId>(program_.caches.size());
  program_.caches.push_back({a.kv_heads, a.head_dim, a.head_dim});
  program_.ops.push_back(Store{.k = k, .v = v, .cache = caches_[layer]});
}

void Builder::keep(std::size_t layer, const View& k) {
  if (!read_in(layer, cached_ ? last_ : layer + 1, c_.layers.size())) return;
  kept_[layer] = slot(Rows::tokens, 2 * k.width);
  scale(part(k, k.col, 2 * k.width), kept_[layer], 1);  // v lies beside k
}

View Builder::input_of(std::size_t layer) const {
  const std::int32_t width = c_.layer_inputs.width;
  return part(inputs_, inputs_.col + static_cast<std::int32_t>(layer - first_input_) * width, width);
}

}  // namespace pumice::model
