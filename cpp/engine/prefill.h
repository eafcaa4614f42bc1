// The keys and values of a whole text, computed outside of the scheduler's batch: for logits, scores and prefixes that are saved.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/cancel.h"
#include "engine/runtime.h"

namespace pumice::engine {

// Throws invalid_argument, context_length and out_of_memory where a text cannot be.
void check_text(const Runtime& runtime, std::span<const std::int32_t> ids);

// Pages for all of `ids`, as soon as there is room: how many tokens are computed already (PagePool::acquire).
std::int32_t claim_pages(Runtime& runtime, PageTable& table, std::span<const std::int32_t> ids, bool reuse, const Cancel& cancel);

// Runs all of `ids` in chunks. each(space, first, hidden): the hidden rows of tokens first, first + 1, ...; of the last token alone
// unless `all`. held(table): all is computed, before the pages are given back.
using Each = std::function<void(RunSpace& space, std::int64_t first, std::span<const float> hidden)>;
using Held = std::function<void(const PageTable& table)>;
void prefill(Runtime& runtime, std::span<const std::int32_t> ids, bool all, const Each& each, const Cancel& cancel, const Held& held = {});

}  // namespace pumice::engine
