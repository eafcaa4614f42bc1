// Identifies a model, for files that hold its keys and values.
#pragma once

#include <cstdint>
#include <span>

#include "files/model_file.h"
#include "model/lora.h"

namespace pumice::engine {

// Returns the fingerprint of a model file. `read` is a view that sums the bytes read through it (ModelFile::summed()), after everything was
// read. The fingerprint covers three things: the metadata, except names and the keys of the tokenizer; the names, formats and shapes of
// tensors; and every byte that was read from them, as it was when it was read.
std::uint64_t fingerprint(const files::ModelFile& read);
// Returns the fingerprint of adapters in the order in which they are added. It covers the bytes that were read from each, and the scale of
// its factors.
std::uint64_t fingerprint(std::span<const model::LoraSpec> adapters);

}  // namespace pumice::engine
