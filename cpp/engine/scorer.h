// Computes logits and log-probabilities of a given text with a decoder, in the batch that all callers share. Both functions throw as
// TextRequest does.
#pragma once

#include <cstdint>
#include <span>

#include "core/cancel.h"
#include "engine/scheduler.h"
#include "engine/text_task.h"

namespace pumice::engine {

// If `all` is true, computes the logits after each token, and `out` has the shape tokens x vocabulary. Otherwise computes only the logits
// after the last token, and uses cached pages for the beginning of the text.
void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel);

// Computes the log-probability of each token but the first: out[i] is the log-probability of ids[i + 1] after ids[0 .. i]. Needs no memory
// for the logits of all tokens. If likeliest.count is not 0, also computes the likeliest tokens at each position.
void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel,
           const Likeliest& likeliest = {});

}  // namespace pumice::engine
