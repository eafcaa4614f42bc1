#version 450
#extension GL_GOOGLE_include_directive : require
// Finds the pairs of one expert, for Experts of many rows, and cuts them into tiles. See SortParams in params.h. Each lane handles a run of
// neighbouring pairs. It counts the expert's pairs in its run. When all lanes have counted, it writes these pairs behind those of the lanes
// before it, so that the pairs of an expert keep their order.
#define PUSH SortParams
#include "common.glsl"

layout(set = 0, binding = 0) readonly buffer RouteRows { float route[]; };
layout(set = 0, binding = 1) writeonly buffer List { uint list[]; };

shared uvec2 counts[LANES];  // pairs in each lane's run: (number for the experts before this group's expert, number for this expert)

uint route_of(uint pair) { return p.route_at + pair / p.chosen * p.route_stride + pair % p.chosen; }
// Returns the expert of a pair. An invalid index, which Route never writes, counts as expert 0.
uint expert_of(uint pair) {
  const float expert = route[route_of(pair)];
  return expert >= 0 && expert < float(p.experts) ? uint(expert) : 0;
}

void main() {
  if (group() >= p.groups) return;
  const uint expert = group(), run = (p.pairs + LANES - 1) / LANES;
  const uint first_pair = min(LANE * run, p.pairs), end_pair = min(first_pair + run, p.pairs);
  uvec2 own = uvec2(0);
  for (uint pair = first_pair; pair < end_pair; ++pair) {
    const uint e = expert_of(pair);
    own += uvec2(e < expert, e == expert);
  }
  counts[LANE] = own;
  barrier();
  // first_place: the expert's first place in the list. place: this lane's next place in the list. total: the expert's number of pairs.
  uint first_place = 0, place = 0, total = 0;
  for (uint i = 0; i < LANES; ++i) {
    first_place += counts[i].x;
    total += counts[i].y;
    if (i < LANE) place += counts[i].y;
  }
  place += first_place;
  if (own.y > 0) {
    for (uint pair = first_pair; pair < end_pair; ++pair) {
      if (expert_of(pair) != expert) continue;
      const uint at = p.tiles * kListTileWords + place * kListPlaceWords;
      list[at] = pair;
      list[at + 1] = floatBitsToUint(route[route_of(pair) + p.chosen]);
      ++place;
    }
  }
  const uint first_tile = first_place / p.tile_rows + expert, end_tile = (first_place + total) / p.tile_rows + expert + 1;
  for (uint i = LANE; first_tile + i < end_tile; i += LANES) {
    const uint at = (first_tile + i) * kListTileWords, begin = min(i * p.tile_rows, total);
    list[at] = expert;
    list[at + 1] = first_place + begin;
    list[at + 2] = min(p.tile_rows, total - begin);
  }
}
