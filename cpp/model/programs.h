// From a description to programs. One transformer block is written here, for every family.
#pragma once

#include "core/program.h"
#include "model/description.h"

namespace pumice::model {

// What the last stage of a body gives: the selected rows before the final norm, one pooled row per segment, every row after the
// layers (encoders), or the classifier's logits per segment.
enum class Output : std::uint8_t { selected, pooled, tokens, classes };

// Layers [first, last). The first stage takes ids, the others hidden rows; only a stage that ends with the last layer gives `output`.
Program body_program(const Description& d, std::size_t first, std::size_t last, Output output, PoolKind pooling = PoolKind::mean);
Program head_program(const Description& d);       // hidden rows to logits
Program log_prob_program(const Description& d);   // hidden rows and targets to log-probabilities

// Which matrices a program reads.
std::vector<bool> used_matrices(const Program& program, std::size_t matrices);

}  // namespace pumice::model
