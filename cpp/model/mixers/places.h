// DeBERTa's relative positions (He et al. 2021): queries meet keys of places, and keys meet queries of places.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops.h"
#include "model/layer.h"

namespace pumice::model {

class WeightReader;
class Writer;
struct Description;

// What layers with Attention::places read.
struct PlaceTables {
  VectorId by_distance = VectorId::none;  // 2 reach + 1 numbers of places, as Attend has them
  std::int32_t reach = 0;
  struct OfLayer {  // a matrix for each head, with a row for each place
    std::vector<MatrixId> keys, queries;
  };
  std::vector<OfLayer> layers;
};

// The distance from where on the first and the last place repeat.
std::int32_t place_reach(const RelativePlaces& places);
// The number of the place of each distance of a key from its query, from -reach to reach.
std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach);

// Fills Description::places. Keys and queries of places are the rows of place_embedding, normalised, through the projections of the layer.
// They are computed while they are read: n x hidden x head_dim products a head.
void add_places(const WeightReader& reader, Description& d, Rounding rounding);

// Columns that write_places() needs behind q, k and v in their slot.
std::int32_t places_width(const Attention& attention);
// Writes the products of queries and keys with the rows of all places, head by head, and says so in `op`. `k`: the keys; `out`: the columns
// of places_width().
void write_places(Writer& writer, std::size_t layer, const Attention& attention, const View& k, View out, Attend& op);

}  // namespace pumice::model
