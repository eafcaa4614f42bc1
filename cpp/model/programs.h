// Translates a description to programs. The same function writes the layers of every family.
#pragma once

#include <algorithm>

#include "core/program.h"
#include "model/description.h"

namespace pumice::model {

// The result of a body's last stage.
//   hidden, selected: rows of all tokens, or of the selected ones, before the final norm; decoders store keys and values in caches
//   tokens, pooled: a row per token, or one per segment, after the modules; the input is whole texts, and there are no caches
//   classes: the classifier's logits per segment; the input is whole texts, and there are no caches
enum class Output : std::uint8_t { hidden, selected, tokens, pooled, classes };

// Returns the program of layers [first, last). The first stage's input is ids, the others' is hidden rows. The result is `output` if the
// stage ends with the model's last layer, and hidden rows otherwise.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output);
// Returns the program of one layer, hidden rows to hidden rows, without caches. The model's last layer includes the final norm.
Program layer_program(const Description& d, std::size_t layer);
// Returns the part of that program before attention: hidden rows to rows that hold the inputs of Attend. Sets `attend` to that operation.
Program query_program(const Description& d, std::size_t layer, Attend& attend);
Program head_program(const Description& d);      // hidden rows to logits
Program log_prob_program(const Description& d);  // hidden rows and targets to log-probabilities

// Returns the program from hidden rows to the logits that sampling needs: the kTopLogits largest, and those of reported ids. 64 is more
// than the usual top_k. A row of Top is an eighth of the logits, at most 17 KB.
inline constexpr std::int32_t kTopLogits = 64;
constexpr std::int32_t top_reported(std::int32_t vocab) { return std::clamp(vocab / 8, 16, 4096); }
Program top_program(const Description& d);

}  // namespace pumice::model
