// Decides how many bytes of a mixture's experts are in the host's memory. The others are read from the file when rows choose them.
#pragma once

#include <cstdint>
#include <set>

#include "engine/load_options.h"
#include "engine/placement/costs.h"
#include "engine/placement/report.h"

namespace pumice::engine {

// Returns the sum over the distinct sizes of the experts of these layers. A cache of this size is never too small for them.
std::uint64_t least_experts(const Costs& costs, std::size_t place, const std::set<std::size_t>& layers);

// Returns how many bytes of a place's experts are in memory, as in Backend::pack(), and changes `cost`, what the place holds, accordingly.
// Without expert_cache=, all experts are in memory if they fit beside the planned keys and values. If they do not, as many are as leave a
// sixteenth of the free memory to the system, which caches parts of the file there. The result is at least `least` bytes. `beside` is the
// number of bytes that other places take of the same memory.
std::uint64_t limit_experts(const Place& place, std::uint64_t least, std::uint64_t beside, std::int64_t most_positions,
                            const LoadOptions& options, Report& report, Cost& cost);

}  // namespace pumice::engine
