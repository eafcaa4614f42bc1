// Compares two configurations of a model that were read from different files: a safetensors folder and the GGUF file made from it.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace pumice::model {

struct Difference {
  std::string field;  // name of the struct and the field, for example "Attention::window"
  std::string text;   // both values, for example "layer 3: 4096 and 0"
};

// Returns the first difference in each field. Floats count as equal if they differ by less than 1e-5 of their size, because the two files
// may have computed them in different ways.
std::vector<Difference> differences(Config a, Config b);

}  // namespace pumice::model
