// From a description to programs. One function writes the layers of every family.
#pragma once

#include <algorithm>

#include "core/program.h"
#include "model/description.h"

namespace pumice::model {

// The result of a body's last stage.
//   hidden, selected: every row, or the selected rows, before the final norm; a decoder keeps keys and values in caches
//   tokens, pooled: every row, or one row for each segment, after their modules; of whole texts, without caches
//   classes: the classifier's logits for each segment; of whole texts, without caches
enum class Output : std::uint8_t { hidden, selected, tokens, pooled, classes };

// Layers [first, last). The first stage takes ids, the others hidden rows. A stage that ends with the last layer gives `output`, the others
// give hidden rows.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output);
// One layer alone, hidden rows to hidden rows, without caches. The last layer has the final norm.
Program layer_program(const Description& d, std::size_t layer);
// The same layer up to its attention: hidden rows to rows that hold what Attend reads of them. `attend` is that operation.
Program query_program(const Description& d, std::size_t layer, Attend& attend);
Program head_program(const Description& d);      // hidden rows to logits
Program log_prob_program(const Description& d);  // hidden rows and targets to log-probabilities

// Hidden rows to the logits that choosing a token needs: the largest, and those of reported ids. 64 is more than top_k usually is. A row of
// Top is an eighth of the logits, at most 17 KB.
inline constexpr std::int32_t kTopLogits = 64;
constexpr std::int32_t top_reported(std::int32_t vocab) { return std::clamp(vocab / 8, 16, 4096); }
Program top_program(const Description& d);

}  // namespace pumice::model
