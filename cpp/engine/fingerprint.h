// Identifies a model, for files that hold its keys and values.
#pragma once

#include <cstdint>
#include <span>

#include "files/model_file.h"
#include "model/lora.h"

namespace pumice::engine {

// The fingerprint of a model file. `read` is a view that sums what is read (ModelFile::summed()), after everything was read. It covers the
// metadata except names and what belongs to the tokenizer, the names, formats and shapes of tensors, and every byte that was read of them,
// as it was at that moment.
std::uint64_t fingerprint(const files::ModelFile& read);
// The fingerprint of adapters in the order in which they are added: what was read of each, and the scale of its factors.
std::uint64_t fingerprint(std::span<const model::LoraSpec> adapters);

}  // namespace pumice::engine
