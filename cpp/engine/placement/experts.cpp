#include "engine/placement/experts.h"

#include <algorithm>

#include "engine/placement/fill.h"

namespace pumice::engine {

std::uint64_t least_experts(const Costs& costs, std::size_t place, const std::set<std::size_t>& layers) {
  std::set<std::uint64_t> sizes;
  for (const std::size_t layer : layers) sizes.insert(costs.least_experts(place, layer));
  std::uint64_t sum = 0;
  for (const std::uint64_t size : sizes) sum = plus(sum, size);
  return sum;
}

std::uint64_t limit_experts(const Place& place, std::uint64_t least, std::uint64_t beside, std::int64_t most_positions,
                            const LoadOptions& options, Report& report, Cost& cost) {
  if (cost.experts == 0) return kAllExperts;
  const std::uint64_t rest = plus(less(cost.weights, cost.experts), plus(cost.scratch, beside));
  const std::uint64_t caches = units(cost).bytes_for(target_pages(units(cost), options, most_positions));
  std::uint64_t bytes = options.expert_cache.value_or(kAllExperts);
  if (!options.expert_cache && plus(plus(rest, cost.experts), caches) > place.free)
    bytes = less(place.free, plus(plus(rest, caches), place.free / 16));
  if (bytes >= cost.experts) return kAllExperts;
  if (bytes < least && options.expert_cache) {
    report.problem(ErrorKind::out_of_memory, "expert_cache=", bytes, " is too small: the experts of one layer of each size take ", least,
                   " bytes, and a step needs all experts of a layer at once");
  }
  bytes = std::max(bytes, least);
  report.note(mib(bytes), " of ", mib(cost.experts), " of experts are in memory", options.expert_cache ? " (expert_cache)" : "",
              "; the others are read from the file when a token needs them",
              options.expert_cache ? "" : ". A smaller quantization, n_ctx or kv_budget makes room for more");
  cost.weights = plus(less(cost.weights, cost.experts), bytes);
  cost.experts = bytes;
  return bytes;
}

}  // namespace pumice::engine
