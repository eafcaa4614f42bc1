// Compares two configurations of a model, read from different files: a safetensors folder and the GGUF file that was made from it.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace pumice::model {

struct Difference {
  std::string field;  // "Attention::window"
  std::string text;   // "layer 3: 4096 and 0"
};

// Returns the first difference in each field. Floats that differ by less than 1e-5 of their size are equal, because the two files may have
// computed them in another order.
std::vector<Difference> differences(Config a, Config b);

}  // namespace pumice::model
