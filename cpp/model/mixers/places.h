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

// The tables of relative positions of a model whose layers have Attention::places.
struct PlaceTables {
  VectorId by_distance = VectorId::none;  // for each distance from -reach to reach, its row in the tables below (Attend::places)
  std::int32_t reach = 0;
  // The tables of one layer. Each head has two matrices with one row per relative position. Queries are multiplied by `keys`, and keys by
  // `queries`.
  struct OfLayer {
    std::vector<MatrixId> keys, queries;
  };
  std::vector<OfLayer> layers;
};

// Returns the smallest distance from which on the table row stays the same. All keys at least this far before the query share one row, and
// all keys at least this far after the query share another row.
std::int32_t place_reach(const RelativePlaces& places);
// Returns the table rows for the distances from -reach to reach. A distance is the key's position minus the query's.
std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach);

// Sets Description::places. A layer's tables are the rows of place_embedding (normalised if the model has place_norm) times the layer's
// projections. A table is computed each time it is read, with rows x hidden x head_dim multiplications per head.
void add_places(const WeightReader& reader, Description& d, Rounding rounding);

// Returns the number of columns that write_places() fills. In the slot of q, k and v, these columns come after those three.
std::int32_t places_width(const Attention& attention);
// Adds operations that multiply queries (op.q) and keys (`k`) by the layer's tables (PlaceTables), head by head, and write the products to
// the places_width() columns of `out`. Sets the members of `op` that refer to these products.
void write_places(Writer& writer, std::size_t layer, const Attention& attention, const View& k, View out, Attend& op);

}  // namespace pumice::model
