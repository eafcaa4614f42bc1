// Encodes any number of texts in ragged micro-batches, without padding.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>

#include "core/cancel.h"
#include "engine/runtime.h"

namespace pumice::engine {

// Text i is ids[offsets[i] .. offsets[i + 1]), with a type id for each token unless `types` is empty.
struct Texts {
  std::span<const std::int32_t> ids;
  std::span<const std::int64_t> offsets;  // ascending, one more than there are texts
  std::span<const std::int32_t> types;
  std::int32_t prompt = 0;                    // pooling leaves out so many tokens at the beginning of each text
  std::span<const std::int32_t> unseen = {};  // Segment::unseen of each text; empty: 0
};

using TextsDone = std::function<void(std::int64_t)>;  // gets the number of finished texts, on the calling thread

// Runs the texts, longest first, in micro-batches of at most token_budget tokens (0: automatic). A longer text runs alone, and
// micro-batches are smaller where a GPU does not hold so many tokens. So memory depends on the budget and not on the number of texts. The
// runtime's pipeline must give one row for each text (pooled, or a classifier's logits). Its first `d` values go to row i of `out` (n x d),
// scaled to length 1 with `normalize`; a vector of zeros stays as it is.
void encode(Runtime& runtime, const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, std::int64_t token_budget,
            const TextsDone& progress, const Cancel& cancel);

// One of several calls whose texts run together. A NaN among its rows is an error of this call alone.
struct EncodeCall {
  Texts texts;
  std::span<float> out;
  std::int32_t d = 0;
  bool normalize = false;
  std::exception_ptr error = {};
};
void check_call(const Runtime& runtime, const EncodeCall& call);  // throws what encode() throws before it computes
// encode() of calls that check_call() has passed. All have types or none has, and their prompts are equally long. It throws errors that end
// all of them: those of a device.
void encode_together(Runtime& runtime, std::span<EncodeCall* const> calls, const Cancel& cancel);

// The runtime's pipeline must give one row for each token. The rows go to `out` (tokens x hidden_size) in the order of ids.
void encode_tokens(Runtime& runtime, const Texts& texts, std::span<float> out, const TextsDone& progress, const Cancel& cancel);

}  // namespace pumice::engine
