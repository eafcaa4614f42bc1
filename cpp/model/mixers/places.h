// DeBERTa's relative positions (He et al. 2021), which the code calls places. Products of queries and keys with position embeddings are
// added to the scores.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops.h"
#include "model/layer.h"

namespace pumice::model {

class WeightReader;
class Writer;
struct Description;

// Tables for the layers that have Attention::places.
struct PlaceTables {
  VectorId by_distance = VectorId::none;  // the table row of each distance from -reach to reach, as in Attend
  std::int32_t reach = 0;
  // One matrix per head, with one row per relative position. Queries are multiplied by `keys`, and keys by `queries`.
  struct OfLayer {
    std::vector<MatrixId> keys, queries;
  };
  std::vector<OfLayer> layers;
};

// Returns the distance from which on all keys before a query share one table row, and all keys after it share another.
std::int32_t place_reach(const RelativePlaces& places);
// Returns the table row of each distance (the key's position minus the query's) from -reach to reach.
std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach);

// Sets Description::places. A layer's tables are the rows of place_embedding, normalised if the model has place_norm, times the layer's
// projections. They are computed each time they are read, which takes rows x hidden x head_dim multiplications per head.
void add_places(const WeightReader& reader, Description& d, Rounding rounding);

// Returns how many columns write_places() needs after q, k and v in their slot.
std::int32_t places_width(const Attention& attention);
// Adds operations that multiply queries (op.q) and keys (`k`) by the tables, head by head. The products go to `out`, which has
// places_width() columns. Sets the members of `op` that refer to these products.
void write_places(Writer& writer, std::size_t layer, const Attention& attention, const View& k, View out, Attend& op);

}  // namespace pumice::model
