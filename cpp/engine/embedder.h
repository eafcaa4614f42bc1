// Texts in, vectors out: any number of texts through an encoder, in ragged micro-batches without padding.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>

#include "core/cancel.h"
#include "engine/runtime.h"

namespace pumice::engine {

// Text i is ids[offsets[i] .. offsets[i + 1]), with a type id per token unless `types` is empty.
struct Texts {
  std::span<const std::int32_t> ids;
  std::span<const std::int64_t> offsets;  // one more than texts, ascending
  std::span<const std::int32_t> types;
  std::int32_t prompt = 0;                    // of the first tokens of each text: pooling leaves so many out
  std::span<const std::int32_t> unseen = {};  // of the last tokens of each text: Segment::unseen; or empty
};

using TextsDone = std::function<void(std::int64_t)>;  // called on the calling thread

// Runs texts longest first in micro-batches of at most token_budget tokens (0: automatic; a longer text alone), so that memory depends on
// the budget and not on the number of texts; fewer tokens where a GPU does not hold so many. The runtime's pipeline gives one row per text
// (pooled, or a classifier's logits): the first `d` values of it go to row i of `out` (n x d), scaled to length 1 when `normalize` (a zero
// vector stays zero).
void encode(Runtime& runtime, const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, std::int64_t token_budget,
            const TextsDone& progress, const Cancel& cancel);

// One of several calls whose texts run in one plan. A NaN among its rows is its own error.
struct EncodeCall {
  Texts texts;
  std::span<float> out;
  std::int32_t d = 0;
  bool normalize = false;
  std::exception_ptr error = {};
};
void check_call(const Runtime& runtime, const EncodeCall& call);  // throws what encode() throws before it computes
// encode() of checked calls that all have types or none, and prompts of equal length. Throws what ends all of them: an error of the device.
void encode_together(Runtime& runtime, std::span<EncodeCall* const> calls, const Cancel& cancel);

// The runtime's pipeline gives one row per token: they go to `out` (tokens x hidden_size), in the order of ids.
void encode_tokens(Runtime& runtime, const Texts& texts, std::span<float> out, const TextsDone& progress, const Cancel& cancel);

}  // namespace pumice::engine
