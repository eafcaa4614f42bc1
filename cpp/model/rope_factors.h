// Loads divisors of rope frequencies, which GGUF files store as tensors.
#pragma once

#include "files/model_file.h"
#include "model/config.h"

namespace pumice::model {

// Divides the frequencies of the model's first rope by the divisors in the file. llama.cpp writes the rope scaling of Llama 3.1 as one list
// of divisors, one per frequency, and longrope as two such lists. Throws ErrorKind::model_format if a needed tensor is missing or a divisor
// is not valid.
void divide_by_rope_factors(const files::ModelFile& file, Config& config);

}  // namespace pumice::model
