// Logits and log-probabilities of a given text under a decoder, computed in the batch of all callers. Both throw as TextRequest does.
#pragma once

#include <cstdint>
#include <span>

#include "core/cancel.h"
#include "engine/scheduler.h"

namespace pumice::engine {

// Logits of the last position (out: vocabulary values), which may begin with cached pages, or of all (out: tokens x vocabulary).
void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel);

// out[i]: log-probability of ids[i + 1] after ids[0 .. i]. ids.size() - 1 values; no tokens x vocabulary array is ever built.
void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel);

}  // namespace pumice::engine
