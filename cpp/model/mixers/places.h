// Relative positions of DeBERTa (He et al. 2021), which the code calls places. Queries and keys are multiplied by position embeddings, and
// the products are added to attention scores.
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
  VectorId by_distance = VectorId::none;  // Attend::places: for each distance from -reach to reach, the row of the tables below
  std::int32_t reach = 0;
  // One matrix per head, with one row per relative position. Queries are multiplied by the matrices `keys`, and keys by the matrices
  // `queries`.
  struct OfLayer {
    std::vector<MatrixId> keys, queries;
  };
  std::vector<OfLayer> layers;
};

// Returns the smallest distance such that all keys at this distance or farther before the query share one table row, and all keys as far
// after the query share another row.
std::int32_t place_reach(const RelativePlaces& places);
// Returns the table row for each distance from -reach to reach. A distance is the key's position minus the query's.
std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach);

// Sets Description::places. A layer's tables are the rows of place_embedding (normalised if the model has place_norm) times the layer's
// projections. The tables are computed each time they are read. This takes rows x hidden x head_dim multiplications per head.
void add_places(const WeightReader& reader, Description& d, Rounding rounding);

// Returns the number of columns that write_places() needs after q, k and v in the slot of these three.
std::int32_t places_width(const Attention& attention);
// Adds operations that multiply queries (op.q) and keys (`k`) by the tables, head by head. The products go to `out`, which has
// places_width() columns. Sets the members of `op` that refer to these products.
void write_places(Writer& writer, std::size_t layer, const Attention& attention, const View& k, View out, Attend& op);

}  // namespace pumice::model
