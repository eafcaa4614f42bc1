#include "model/mixers/places.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "model/weight_reader.h"
#include "model/writer.h"

namespace pumice::model {
namespace {

// Returns the table row for a distance. `before` is the query's position minus the key's. The result is computed in float32, as in
// make_log_bucket_position() of transformers.
std::int32_t place_of(const RelativePlaces& places, std::int32_t before) {
  std::int32_t bucket = before;
  if (const std::int32_t mid = places.span / 2, away = std::abs(before); places.max_distance > 0 && away > mid) {
    const float octaves = std::log(static_cast<float>(away) / static_cast<float>(mid)) /
                          std::log(static_cast<float>(static_cast<double>(places.max_distance - 1) / mid));
    const auto beyond = static_cast<std::int32_t>(std::min(std::ceil(octaves * static_cast<float>(mid - 1)), 1e9f)) + mid;
    bucket = before > 0 ? beyond : -beyond;
  }
  return std::clamp(places.span + bucket, 0, 2 * places.span - 1);
}

// Applies LayerNorm to each row, in double precision.
void normalize_rows(std::vector<float>& rows, const std::vector<float>& weight, const std::vector<float>& bias, float eps) {
  const std::size_t width = weight.size();
  for (std::size_t row = 0; row < rows.size(); row += width) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += rows[row + i];
    mean /= static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) variance += (rows[row + i] - mean) * (rows[row + i] - mean);
    const double factor = 1 / std::sqrt(variance / static_cast<double>(width) + eps);
    for (std::size_t i = 0; i < width; ++i) rows[row + i] = static_cast<float>((rows[row + i] - mean) * factor * weight[i] + bias[i]);
  }
}

// Computes rows of one head's table. A row is a position embedding times the head's part of a projection.
struct HeadOfPlaces {
  std::shared_ptr<const std::vector<float>> places;
  Matrix projection;
  std::vector<float> bias;  // the head's part of the projection's bias
  std::int32_t head = 0;

  void operator()(std::int64_t first, std::int64_t count, std::uint8_t* out) const {
    const std::size_t size = bias.size(), cols = static_cast<std::size_t>(projection.cols);
    const std::vector<float> turned = columns();
    std::vector<float> row(size);
    for (std::int64_t r = first; r < first + count; ++r) {
      const float* place = places->data() + r * projection.cols;
      row = bias;
      for (std::size_t i = 0; i < cols; ++i) {
        for (std::size_t c = 0; c < size; ++c) row[c] += place[i] * turned[i * size + c];
      }
      std::memcpy(out + static_cast<std::size_t>(r - first) * size * sizeof(float), row.data(), size * sizeof(float));
    }
  }

  // Returns the head's part of the projection, transposed: cols x head_dim.
  std::vector<float> columns() const {
    const std::size_t size = bias.size(), cols = static_cast<std::size_t>(projection.cols);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(projection.format, projection.cols)));
    std::vector<float> weights(cols), turned(cols * size);
    for (std::size_t c = 0; c < size; ++c) {
      projection.read(static_cast<std::int64_t>(static_cast<std::size_t>(head) * size + c), 1, packed.data());
      unpack(projection.format, packed.data(), projection.cols, weights.data());
      for (std::size_t i = 0; i < cols; ++i) turned[i * size + c] = weights[i];
    }
    return turned;
  }
};

}  // namespace

std::int32_t place_reach(const RelativePlaces& places) {
  constexpr std::int32_t kMost = 1 << 20;  // the largest value that Attend::reach may have
  std::int32_t reach = 1;
  while (reach < kMost && (place_of(places, reach) != 2 * places.span - 1 || place_of(places, -reach) != 0)) ++reach;
  return reach;
}

std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach) {
  std::vector<float> by_distance;
  for (std::int32_t distance = -reach; distance <= reach; ++distance)
    by_distance.push_back(static_cast<float>(place_of(places, -distance)));
  return by_distance;
}

void add_places(const WeightReader& reader, Description& d, Rounding rounding) {
  if (!d.config.places()) return;
  const RelativePlaces& places = *d.config.places();
  auto rows = std::make_shared<std::vector<float>>(reader.read_table(Role::place_embedding).values);
  d.parameters += rows->size();
  if (const Parameter& norm = d.global(Role::place_norm); places.norm)
    normalize_rows(*rows, d.vector(norm.vector).values, d.vector(norm.bias).values, d.config.eps);
  d.places.reach = place_reach(places);
  d.places.by_distance = d.add(Vector{.name = "places by distance", .values = places_by_distance(places, d.places.reach)});
  const auto add = [&](std::vector<MatrixId>& heads, const Parameter& projection, std::int32_t head, std::int32_t dim) {
    const auto at = d.vector(projection.bias).values.begin() + std::int64_t{head} * dim;
    const Matrix& source = d.matrix(projection.matrix);
    heads.push_back(d.add(Matrix{.name = str(source.name, " of places, head ", head),
                                 .format = Format::F32,
                                 .rows = 2 * std::int64_t{places.span},
                                 .cols = dim,
                                 .read = HeadOfPlaces{rows, source, std::vector<float>(at, at + dim), head},
                                 .rounding = rounding}));
  };
  d.places.layers.resize(d.config.layers.size());
  for (std::size_t layer = 0; layer < d.config.layers.size(); ++layer) {
    const Attention* a = d.config.layers[layer].if_attention();
    PlaceTables::OfLayer& tables = d.places.layers[layer];
    for (std::int32_t head = 0; a && a->places && head < a->heads; ++head) {
      if (places.by_query) add(tables.keys, d.at(layer, places.shared ? Role::k : Role::place_k), head, a->head_dim);
      if (places.by_key) add(tables.queries, d.at(layer, places.shared ? Role::q : Role::place_q), head, a->head_dim);
    }
  }
}

std::int32_t places_width(const Attention& a) {
  return a.places ? (a.places->by_query + a.places->by_key) * a.heads * 2 * a.places->span : 0;
}

void write_places(Writer& w, std::size_t layer, const Attention& a, const View& k, View out, Attend& op) {
  const std::int32_t places = 2 * a.places->span;
  const auto write = [&](const View& in, const std::vector<MatrixId>& heads) {
    const View all = Writer::part(out, out.col, a.heads * places);
    out.col += all.width;
    for (std::int32_t head = 0; head < a.heads; ++head) {
      w.linear(Writer::part(in, in.col + head * a.head_dim, a.head_dim), Writer::part(all, all.col + head * places, places),
               {Parameter{.matrix = heads[static_cast<std::size_t>(head)]}});
    }
    return all;
  };
  const PlaceTables& tables = w.d.places;
  if (a.places->by_query) op.by_query = write(op.q, tables.layers[layer].keys);
  if (a.places->by_key) op.by_key = write(k, tables.layers[layer].queries);
  op.places = tables.by_distance;
  op.reach = tables.reach;
}

}  // namespace pumice::model
