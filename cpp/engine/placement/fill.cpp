#include "engine/placement/fill.h"

#include <algorithm>
#include <numeric>

#include "engine/placement.h"

namespace pumice::engine {
namespace {

// Fractions of a place's memory are integers, and kWhole is the whole memory. A fraction is larger than kWhole if the layers do not fit.
// kMostFraction is the largest fraction that balanced() tries.
constexpr std::uint64_t kWhole = 1 << 16;
constexpr std::uint64_t kMostFraction = std::uint64_t{1} << 50;

// Returns how many of the layers first, ..., last - 1 have their experts on the host. These are the layers before `away_before`.
std::size_t away_in(std::size_t first, std::size_t last, std::size_t away_before) { return std::clamp(away_before, first, last) - first; }

std::uint64_t bytes_with(const Cost& cost, std::uint64_t pages) {
  return plus(plus(cost.weights, cost.scratch), units(cost).bytes_for(pages));
}

}  // namespace

std::uint64_t target_pages(const CacheUnits& cache, const LoadOptions& options, std::int64_t most_positions) {
  if (cache.page_bytes == 0 && cache.state_bytes == 0) return 0;
  if (options.kv_budget) return cache.pages_in(*options.kv_budget);
  return pages_for(options.n_ctx.value_or(std::min(most_positions, kPlannedPositions)));
}

std::string Need::text() const {
  const std::string kv =
      keeps_past(cost) ? str(", ", kept(cost), " of ", pages * kPageTokens, " positions ", mib(units(cost).bytes_for(pages))) : "";
  return str(mib(bytes), " (weights ", mib(cost.weights), kv, ", scratch ", mib(cost.scratch), ")");
}

Fill::Fill(const Costs& costs, const LoadOptions& options) : costs_(costs), options_(options) {}

std::uint64_t Fill::pages(const Split& split) const {
  Cost all = costs_.stage(kHost, 0, border(split), 0);
  for (const Share& share : split) all = both(all, costs_.stage(share.place, share.first, share.last, 0));
  return target_pages(units(all), options_, costs_.description().config.n_ctx);
}

std::vector<Need> Fill::needs(const Split& split) const {
  std::vector<Need> needs(split.size());
  const std::uint64_t pages = this->pages(split);
  std::uint64_t host = costs_.places()[kHost].free;
  for (std::size_t i = split.size(); i-- > 0;) {
    const Share& share = split[i];
    const Place& place = costs_.places()[share.place];
    Need& need = needs[i];
    need.cost = costs_.stage(share.place, share.first, share.last, share.away);
    need.pages = pages;
    need.bytes = bytes_with(need.cost, pages);
    need.limit = place.in_host_memory ? std::min(place.free, host) : place.free;
    need.missing = less(need.bytes, need.limit);
    if (place.in_host_memory) host = less(host, need.bytes);
  }
  return needs;
}

std::uint64_t Fill::missing(const Split& split) const {
  std::uint64_t sum = 0;
  for (const Need& need : needs(split)) sum = plus(sum, need.missing);
  return sum;
}

// Divides the layers of a stretch among its places, from the last place backwards. Each place gets as many layers as fit into the given
// fraction of its memory. Returns nothing if a place has no room for one layer, or if layers are left over.
std::optional<Split> Fill::filled(const Stretch& stretch, std::uint64_t fraction) const {
  const double part = static_cast<double>(fraction) / static_cast<double>(kWhole);
  double host = stretch.host;
  Split split;
  std::size_t last = stretch.end;
  for (std::size_t i = stretch.places.size(); i-- > 0;) {
    const std::size_t at = stretch.places[i];
    const Place& place = costs_.places()[at];
    const auto free = static_cast<double>(std::max<std::uint64_t>(place.free, 1));
    const double room = part * (place.in_host_memory ? std::min(free, host) : free);
    const auto bytes = [&](std::size_t first) {
      return static_cast<double>(bytes_with(costs_.stage(at, first, last, away_in(first, last, stretch.away_before)), stretch.pages));
    };
    const std::size_t least = stretch.first + i;  // the smallest `first` that leaves a layer for each of the i places before
    if (bytes(last - 1) > room) return std::nullopt;
    std::size_t first = last - 1;
    while (first > least && bytes(first - 1) <= room) --first;
    if (i == 0 && first > stretch.first) return std::nullopt;
    split.insert(split.begin(), Share{at, first, last, away_in(first, last, stretch.away_before)});
    if (place.in_host_memory) host = std::max(0.0, host - bytes(first) / part);
    last = first;
  }
  return split;
}

// Divides the layers of a stretch so that each place uses the same fraction of its memory, the smallest one with which filled() succeeds.
// The last place may need this fraction only because it has the head, too. So the layers before those of the last place are divided again
// among the other places, with a smaller fraction.
Split Fill::balanced(const Stretch& stretch) const {
  const Share all{stretch.places.back(), stretch.first, stretch.end, away_in(stretch.first, stretch.end, stretch.away_before)};
  if (stretch.places.size() == 1) return {all};
  std::uint64_t too_small = 0, fraction = kWhole;
  for (; fraction < kMostFraction && !filled(stretch, fraction); fraction *= 2) too_small = fraction;
  while (fraction - too_small > 1) {
    const std::uint64_t middle = too_small + (fraction - too_small) / 2;
    (filled(stretch, middle) ? fraction : too_small) = middle;
  }
  const auto found = filled(stretch, fraction);
  if (!found) return {all};
  const Share& last = found->back();
  Stretch before = stretch;
  before.places.pop_back();
  before.end = last.first;
  if (costs_.places()[last.place].in_host_memory)
    before.host = std::max(
        0.0, stretch.host - static_cast<double>(bytes_with(costs_.stage(last.place, last.first, last.last, last.away), stretch.pages)));
  Split split = balanced(before);
  split.push_back(last);
  return split;
}

Split Fill::balanced(const Places& places, std::size_t count, std::size_t away_before) const {
  const std::size_t border = costs_.layers() - count;
  return balanced(
      {.places = places,
       .first = border,
       .end = costs_.layers(),
       .away_before = away_before,
       // The number of pages depends a little on the split, which is not known yet. So the number for all layers on the last place is used.
       .pages = pages({{places.back(), border, costs_.layers()}}),
       .host = static_cast<double>(costs_.places()[kHost].free)});
}

// Returns how many layers, from the first on, must have their experts on the host, as gpu_experts= requires. The experts of all later
// layers are with their layers.
std::size_t Fill::away_before_asked() const {
  std::int64_t there = 0;
  for (std::size_t l = costs_.layers(); *options_.gpu_experts != kAllLayers && l > 0; --l)
    if (costs_.is_mixture(l - 1) && ++there > *options_.gpu_experts) return l;
  return 0;
}

// Lowers share.away so that the last layer with its experts on the host is a mixture. Dense layers have no experts, so they need not be
// counted.
void Fill::trim(Share& share) const {
  while (share.away > 0 && !costs_.is_mixture(share.first + share.away - 1)) --share.away;
}

// Moves as many experts as fit from the host to the places of their layers. On each place, the experts of the last layers are moved first.
// `split` must fit without these moves.
void Fill::bring_experts(Split& split) const {
  for (std::size_t i = split.size(); i-- > 0;) {
    std::size_t most = split[i].away;  // the split fits if the experts of this many layers are on the host
    for (std::size_t least = 0; least < most;) {
      const std::size_t middle = least + (most - least) / 2;
      split[i].away = middle;
      if (missing(split) > 0) {
        least = middle + 1;
      } else {
        most = middle;
      }
    }
    split[i].away = most;
  }
}

Split Fill::with_some_experts(const std::function<Split(std::size_t away_before)>& divide) const {
  Split split = divide(costs_.layers());
  if (missing(split) == 0) bring_experts(split);
  for (Share& share : split) trim(share);
  return split;
}

Split Fill::with_experts(const std::function<Split(std::size_t away_before)>& divide) const {
  if (!costs_.can_part_experts()) return divide(0);
  Split split = divide(options_.gpu_experts ? away_before_asked() : 0);
  if (!options_.gpu_experts && missing(split) > 0) return with_some_experts(divide);
  for (Share& share : split) trim(share);
  return split;
}

Split Fill::split(std::size_t count) const {
  if (count == 0) return {};
  Places all(costs_.places().size() - 1);
  std::iota(all.begin(), all.end(), kHost + 1);
  const auto drop_smallest = [&](Places& places) {
    places.erase(std::ranges::min_element(places, {}, [&](std::size_t place) { return costs_.places()[place].free; }));
  };
  while (all.size() > count) drop_smallest(all);
  // Tries a split on all places, then on all but the smallest place, and so on. Returns the first split that fits. If none fits, returns
  // the split that lacks the fewest bytes.
  const auto first_that_fits = [&](const std::function<Split(const Places&)>& divide) {
    Split best;
    for (Places places = all;; drop_smallest(places)) {
      Split found = divide(places);
      const bool is_better = best.empty() || missing(found) < missing(best);
      if (is_better) best = std::move(found);
      if (missing(best) == 0 || places.size() == 1) return best;
    }
  };
  const auto first_with = [&](Split (Fill::*with)(const std::function<Split(std::size_t)>&) const) {
    return first_that_fits(
        [&](const Places& places) { return (this->*with)([&](std::size_t away_before) { return balanced(places, count, away_before); }); });
  };
  if (!costs_.can_part_experts() || options_.gpu_experts) return first_with(&Fill::with_experts);
  // If all layers and experts fit on some of the places, uses only these places, so that no experts are on the host.
  Split whole = first_that_fits([&](const Places& places) { return balanced(places, count, 0); });
  return missing(whole) == 0 ? whole : first_with(&Fill::with_some_experts);
}

Split Fill::split(const std::vector<std::int64_t>& counts) const {
  return with_experts([&](std::size_t away_before) {
    Split split;
    std::size_t last = costs_.layers();
    for (std::size_t i = counts.size(); i-- > 0;) {
      const std::size_t first = last - static_cast<std::size_t>(counts[i]);
      if (first < last) split.insert(split.begin(), Share{kHost + 1 + i, first, last, away_in(first, last, away_before)});
      last = first;
    }
    return split;
  });
}

Split Fill::largest() const {
  for (std::size_t count = costs_.layers(); count > 0; --count) {
    Split found = split(count);
    if (missing(found) == 0) return found;
  }
  return {};
}

Split evenly(const Costs& costs) {
  const std::size_t layers = costs.layers(), places = std::min(costs.places().size(), layers);
  Split split;
  for (std::size_t i = 0; i < places; ++i) split.push_back({i, layers * i / places, layers * (i + 1) / places});
  return split;
}

}  // namespace pumice::engine
