// Divisors of rope's frequencies, which GGUF files store as tensors.
#pragma once

#include "files/model_file.h"
#include "model/config.h"

namespace pumice::model {

// Divides the frequencies of the first rope by them: llama.cpp writes Llama 3.1's scaling as one factor for each frequency, and longrope's
// as two sets of them. Throws model_format where one is missing that the rope needs, or is unsound.
void divide_by_rope_factors(const files::ModelFile& file, Config& config);

}  // namespace pumice::model
