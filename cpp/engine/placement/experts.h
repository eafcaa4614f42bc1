// Decides how many bytes of a mixture's experts are in the host's memory. The other experts are read from the file when the router chooses
// them.
#pragma once

#include <cstdint>
#include <set>

#include "engine/load_options.h"
#include "engine/placement/costs.h"
#include "engine/placement/report.h"

namespace pumice::engine {

// Returns the minimum bytes of a cache for the experts of these layers. A step may need all experts of a layer at once. So the cache must
// hold all experts of one layer. If layers differ in the size of their experts, it must hold all experts of one layer of each size.
std::uint64_t least_experts(const Costs& costs, std::size_t place, const std::set<std::size_t>& layers);

// Returns how many bytes of a place's experts are in memory, or kAllExperts if all are (Backend::pack()). `cost` is the cost of all that
// the place holds. It is lowered by the bytes of experts that are not in memory.
//
// Without expert_cache=, all experts are in memory if the planned keys and values fit, too. Otherwise the experts fill the memory that is
// left, except a sixteenth of the free memory, in which the system can cache parts of the file. The result is at least `least` bytes.
// `beside` is the number of bytes that other places use in the same memory. `most_positions` is the n_ctx of the model (target_pages).
std::uint64_t limit_experts(const Place& place, std::uint64_t least, std::uint64_t beside, std::int64_t most_positions,
                            const LoadOptions& options, Report& report, Cost& cost);

}  // namespace pumice::engine
