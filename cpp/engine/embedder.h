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
  std::int32_t prompt = 0;                    // number of tokens at the beginning of each text that pooling leaves out
  std::span<const std::int32_t> unseen = {};  // Segment::unseen of each text; empty: 0 for all
};

using TextsDone = std::function<void(std::int64_t)>;  // gets the number of finished texts, on the calling thread

// Runs the texts, longest first, in micro-batches of at most token_budget tokens (0: automatic). A text longer than that runs alone.
// Micro-batches are smaller if a GPU's memory does not hold so many tokens. So memory depends on the budget and not on the number of texts.
// The runtime's pipeline must compute one row per text (pooled, or a classifier's logits). The first `d` values of the row of text i go to
// row i of `out` (n x d). `normalize` scales them to length 1, except that a vector of zeros stays as it is.
void encode(Runtime& runtime, const Texts& texts, std::span<float> out, std::int32_t d, bool normalize, std::int64_t token_budget,
            const TextsDone& progress, const Cancel& cancel);

// One of several calls whose texts run together. If its rows contain a NaN, only this call fails.
struct EncodeCall {
  Texts texts;
  std::span<float> out;
  std::int32_t d = 0;
  bool normalize = false;
  std::exception_ptr error = {};
};
void check_call(const Runtime& runtime, const EncodeCall& call);  // throws what encode() throws before it computes
// Runs calls that check_call() has passed, as encode() does. Either all have types or none has, and their prompts are equally long. Throws
// only errors that end all calls: those of a device.
void encode_together(Runtime& runtime, std::span<EncodeCall* const> calls, const Cancel& cancel);

// Computes one row per token, as the runtime's pipeline must, and stores the rows in `out` (tokens x hidden_size) in the order of ids.
void encode_tokens(Runtime& runtime, const Texts& texts, std::span<float> out, const TextsDone& progress, const Cancel& cancel);

}  // namespace pumice::engine
