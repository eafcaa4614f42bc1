#include "engine/placement/fill.h"

#include <algorithm>
#include <numeric>

#include "engine/placement.h"

namespace pumice::engine {
namespace {

constexpr std::uint64_t kWhole = 1024;  // the fraction of a place's memory that is all of it
constexpr std::uint64_t kMostFraction = std::uint64_t{1} << 50;

// Returns of how many layers in [first, last) the experts are away, if those of all layers before `away_before` are.
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

// Fills places from the last one backwards, each to a fraction of its memory, until they have `count` layers. Each gets at least one layer.
// Returns nothing if they do not hold so many.
std::optional<Split> Fill::filled(const Places& places, std::size_t count, std::size_t away_before, std::uint64_t fraction) const {
  const std::size_t border = costs_.layers() - count;
  // The caches' size depends a little on the split that is to be found, so it is taken as that of a split on the last place.
  const std::uint64_t pages = this->pages({{places.back(), border, costs_.layers()}});
  auto host = static_cast<double>(costs_.places()[kHost].free);
  const double part = static_cast<double>(fraction) / static_cast<double>(kWhole);
  Split split;
  std::size_t last = costs_.layers();
  for (std::size_t i = places.size(); i-- > 0;) {
    const Place& place = costs_.places()[places[i]];
    const auto free = static_cast<double>(std::max<std::uint64_t>(place.free, 1));
    const double room = part * (place.in_host_memory ? std::min(free, host) : free);
    const auto bytes = [&](std::size_t first) {
      return static_cast<double>(bytes_with(costs_.stage(places[i], first, last, away_in(first, last, away_before)), pages));
    };
    const std::size_t least = border + i;  // leaves a layer for each place before this one
    if (bytes(last - 1) > room) return std::nullopt;
    std::size_t first = last - 1;
    while (first > least && bytes(first - 1) <= room) --first;
    if (i == 0 && first > border) return std::nullopt;
    split.insert(split.begin(), Share{places[i], first, last, away_in(first, last, away_before)});
    if (place.in_host_memory) host = std::max(0.0, host - bytes(first) / part);
    last = first;
  }
  return split;
}

Split Fill::balanced(const Places& places, std::size_t count, std::size_t away_before) const {
  const std::size_t border = costs_.layers() - count;
  if (places.size() == 1) return {{places[0], border, costs_.layers(), away_in(border, costs_.layers(), away_before)}};
  std::uint64_t fraction = 1;
  while (fraction < kMostFraction && !filled(places, count, away_before, fraction)) fraction *= 2;
  for (std::uint64_t too_small = fraction / 2; fraction - too_small > 1;) {
    const std::uint64_t middle = too_small + (fraction - too_small) / 2;
    (filled(places, count, away_before, middle) ? fraction : too_small) = middle;
  }
  auto found = filled(places, count, away_before, fraction);
  return found ? std::move(*found) : balanced({places.back()}, count, away_before);
}

// Returns the layer before which experts are away, so that the experts of only gpu_experts= layers are with their layers.
std::size_t Fill::away_before_asked() const {
  std::int64_t there = 0;
  for (std::size_t l = costs_.layers(); *options_.gpu_experts != kAllLayers && l > 0; --l)
    if (costs_.is_mixture(l - 1) && ++there > *options_.gpu_experts) return l;
  return 0;
}

// Leaves out dense layers at the end of those whose experts are away.
void Fill::trim(Share& share) const {
  while (share.away > 0 && !costs_.is_mixture(share.first + share.away - 1)) --share.away;
}

// Given a split that fits without its experts, brings as many of them as fit, those of each place's last layers first.
void Fill::bring_experts(Split& split) const {
  for (std::size_t i = split.size(); i-- > 0;) {
    std::size_t most = split[i].away;  // with the experts of so many layers away, the split fits
    for (std::size_t least = 0; least < most;) {
      const std::size_t middle = least + (most - least) / 2;
      split[i].away = middle;
      (missing(split) > 0 ? least : most) = missing(split) > 0 ? middle + 1 : middle;
    }
    split[i].away = most;
  }
}

Split Fill::with_experts(const std::function<Split(std::size_t away_before)>& divide) const {
  if (!costs_.can_part_experts()) return divide(0);
  if (options_.gpu_experts) return divide(away_before_asked());
  Split whole = divide(0);
  if (missing(whole) == 0) return whole;
  Split split = divide(costs_.layers());
  if (missing(split) == 0) bring_experts(split);
  for (Share& share : split) trim(share);
  return split;
}

Split Fill::split(std::size_t count) const {
  if (count == 0) return {};
  Places places(costs_.places().size() - 1);
  std::iota(places.begin(), places.end(), kHost + 1);
  const auto drop_smallest = [&] {
    places.erase(std::ranges::min_element(places, {}, [&](std::size_t place) { return costs_.places()[place].free; }));
  };
  while (places.size() > count) drop_smallest();
  Split first;
  for (;; drop_smallest()) {
    Split found = with_experts([&](std::size_t away_before) { return balanced(places, count, away_before); });
    if (missing(found) == 0) return found;
    if (first.empty() || missing(found) < missing(first)) first = std::move(found);
    if (places.size() == 1) return first;
  }
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
