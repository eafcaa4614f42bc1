#include "model/taps.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "model/weight_reader.h"

namespace pumice::model {
namespace {

// Returns the taps and the bias of a convolution whose channels are those of `roles`, one role after another.
Parameter joined(const WeightReader& reader, Description& d, std::size_t layer, std::span<const Role> roles, std::int32_t taps) {
  std::vector<float> rows, bias;
  std::string name;
  for (const Role role : roles) {
    const WeightReader::Taps part = reader.read_taps(role, layer);
    if (part.bias.empty() != bias.empty() && !rows.empty()) reader.missing_bias(role, layer);
    rows.insert(rows.end(), part.rows.values.begin(), part.rows.values.end());
    bias.insert(bias.end(), part.bias.begin(), part.bias.end());
    name = part.rows.name;
  }
  const std::size_t width = static_cast<std::size_t>(taps), channels = rows.size() / width;
  std::vector<float> by_tap(rows.size());
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t j = 0; j < width; ++j) by_tap[j * channels + c] = rows[c * width + j];
  }
  d.parameters += rows.size() + bias.size();
  Parameter parameter{.vector = d.add(Vector{.name = name, .values = std::move(by_tap)})};
  if (!bias.empty()) parameter.bias = d.add(Vector{.name = name + " (bias)", .values = std::move(bias)});
  return parameter;
}

}  // namespace

void add_taps(const WeightReader& reader, Description& d) {
  constexpr Role kScan[] = {Role::scan_q_taps, Role::scan_k_taps, Role::scan_v_taps}, kConv[] = {Role::conv_taps};
  for (std::size_t i = 0; i < d.config.layers.size(); ++i) {
    const Layer& layer = d.config.layers[i];
    const auto set = [&](Role role, Parameter parameter) { d.layers[i][static_cast<std::size_t>(role)] = parameter; };
    if (const ShortConv* s = layer.if_short_conv()) set(Role::conv_taps, joined(reader, d, i, kConv, s->taps));
    if (const Recurrent* r = layer.if_recurrent()) {
      set(Role::scan_taps, joined(reader, d, i, kScan, r->taps));
      if (d.config.gguf) continue;
      for (float& value : d.weights.vectors[static_cast<std::size_t>(d.at(i, Role::scan_rate).vector)].values)
        value = static_cast<float>(-std::exp(static_cast<double>(value)));
    }
  }
}

void add_key_norms(Description& d) {
  std::map<std::pair<std::int32_t, std::int32_t>, VectorId> known;  // by key_heads and key_dim
  d.key_norms.assign(d.config.layers.size(), VectorId::none);
  for (std::size_t i = 0; i < d.config.layers.size(); ++i) {
    const Recurrent* r = d.config.layers[i].if_recurrent();
    if (!r || r->rule != ScanRule::delta) continue;
    const auto [at, missing] = known.try_emplace({r->key_heads, r->key_dim}, VectorId::none);
    if (missing) {
      const auto width = static_cast<std::size_t>(r->key_width());
      std::vector<float> values(2 * width, 1.0f / static_cast<float>(r->key_dim));
      std::fill(values.begin() + r->key_width(), values.end(), 1.0f / std::sqrt(static_cast<float>(r->key_dim)));
      at->second = d.add(Vector{.name = "norms of q and k", .values = std::move(values)});
    }
    d.key_norms[i] = at->second;
  }
}

}  // namespace pumice::model
