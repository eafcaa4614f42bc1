// Divisors of rope frequencies that GGUF files store as tensors.
#pragma once

#include "files/model_file.h"
#include "model/config.h"

namespace pumice::model {

// Divides the frequencies of the first rope by these divisors. llama.cpp writes Llama 3.1's scaling as one divisor per frequency, and
// longrope's as two sets of divisors. Throws ErrorKind::model_format if a tensor that the rope needs is missing or a divisor is not valid.
void divide_by_rope_factors(const files::ModelFile& file, Config& config);

}  // namespace pumice::model
