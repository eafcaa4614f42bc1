// DeBERTa's places (He et al. 2021): what queries say to the places of keys, and keys to the places of queries.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace pumice::model {

class WeightReader;
struct Description;

// The distance from where on the first and the last place repeat; the places by distance of the key from the query, as Attend has them.
std::int32_t place_reach(const RelativePlaces& places);
std::vector<float> places_by_distance(const RelativePlaces& places, std::int32_t reach);

// Fills Description::places and of_places: keys and queries of places, a matrix for each head, which are place_embedding's rows,
// normalised, through the layer's projections. They are computed while they are read: n x hidden x head_dim products a head.
void add_places(const WeightReader& reader, Description& d, Rounding rounding);

}  // namespace pumice::model
