// Computes logits and log-probabilities of a given text with a decoder, in the batch that all callers share. The functions throw as
// the constructor and run() of TextRequest do.
#pragma once

#include <cstdint>
#include <span>

#include "core/cancel.h"
#include "engine/scheduler.h"
#include "engine/text_task.h"

namespace pumice::engine {

// Computes the logits after the last token or, if `all` is true, after each token. `out` holds one row of logits, or one row for each
// token. If `all` is false, the beginning of the text may come from the prefix cache.
void logits(Scheduler& scheduler, std::span<const std::int32_t> ids, bool all, std::span<float> out, const Cancel& cancel);

// Computes the log-probability of each token but the first: out[i] is the log-probability of ids[i + 1] after ids[0 .. i]. Needs no memory
// for the logits of all tokens. If likeliest.count is not 0, also computes the likeliest tokens at each position.
void score(Scheduler& scheduler, std::span<const std::int32_t> ids, std::span<float> out, const Cancel& cancel,
           const Likeliest& likeliest = {});

}  // namespace pumice::engine
