// Which model it is, and what made the bits of its keys and values: for files that hold some.
#pragma once

#include <cstdint>

#include "core/weights.h"
#include "files/model_file.h"

namespace pumice::engine {

// Of a file: its numbers (all metadata but names and what belongs to its tokenizer), its tensors' names, formats and shapes, and a
// sample of their bytes, up to 4 KiB of each. A model that was trained on differs in nearly all of them; one with a few numbers changed
// by hand may not.
std::uint64_t fingerprint(const files::ModelFile& file);
// Of weights as they are packed: quantized or merged with an adapter while they are read. Up to 8 rows of each matrix, whole vectors.
std::uint64_t fingerprint(const Weights& weights);

}  // namespace pumice::engine
