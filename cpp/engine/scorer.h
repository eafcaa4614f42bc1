// Computes logits and log-probabilities of a given text with a decoder, in the batch of all callers. Both functions throw as TextRequest
// does.
#pragma once

#include <cstdint>
#include <span>

#include "core/cancel.h"
#include "engine/scheduler.h"
#include "engine/text_task.h"

namespace pumice::engine {

// Computes the logits after each token if `all` is true (`out` has the shape tokens x vocabulary), else the logits after the last token
// only. In the latter case, cached pages are used for the beginning of the text.
void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel);

// Computes the log-probability of each token but the first: out[i] is that of ids[i + 1] after ids[0 .. i]. An array of tokens x vocabulary
// is never built. If likeliest.count is not 0, also computes the likeliest tokens at each place.
void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel,
           const Likeliest& likeliest = {});

}  // namespace pumice::engine
