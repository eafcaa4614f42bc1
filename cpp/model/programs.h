// From a description to programs. One transformer block is written here, for every family.
#pragma once

#include <algorithm>

#include "core/program.h"
#include "model/description.h"

namespace pumice::model {

// What the last stage of a body gives. To go on from: every row (hidden) or the selected rows, both before the final norm; a decoder then
// keeps keys and values in caches. To look at, of whole texts and without caches: every row, one pooled row for each segment, both behind
// the modules that are theirs, or the classifier's logits for each segment.
enum class Output : std::uint8_t { hidden, selected, tokens, pooled, classes };

// Layers [first, last). The first stage takes ids, the others hidden rows; only a stage that ends with the last layer gives `output`, the
// others give hidden rows.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output);
// One layer alone, hidden rows to hidden rows, without caches; the last one with the final norm.
Program layer_program(const Description& d, std::size_t layer);
// The same layer up to its attention: hidden rows to rows that hold what Attend reads of them. `attend` is that operation.
Program query_program(const Description& d, std::size_t layer, Attend& attend);
Program head_program(const Description& d);      // hidden rows to logits
Program log_prob_program(const Description& d);  // hidden rows and targets to log-probabilities

// Hidden rows to what choosing a token needs of their logits: the largest, and those of reported ids. 64 is more than top_k usually is; all
// of a row of Top together are an eighth of the logits, at most 17 KB.
inline constexpr std::int32_t kTopLogits = 64;
constexpr std::int32_t top_reported(std::int32_t vocab) { return std::clamp(vocab / 8, 16, 4096); }
Program top_program(const Description& d);

// Which matrices a program reads.
std::vector<bool> used_matrices(const Program& program, const Weights& weights);

}  // namespace pumice::model
