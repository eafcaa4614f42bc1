// Fingerprints identify models. A file that holds keys and values (engine/saved_prefix.h) stores the fingerprint of its model, so that no
// other model loads the file.
#pragma once

#include <cstdint>
#include <span>

#include "files/model_file.h"
#include "model/lora.h"

namespace pumice::engine {

// Returns the fingerprint of a model file. `read` must be a view from ModelFile::summed(), which computes checksums of the bytes read
// through it, and the model must have been read completely. The fingerprint covers the metadata (except names and the keys of the
// tokenizer), the names, formats and shapes of tensors, and the value of every tensor byte at the time when it was read.
std::uint64_t fingerprint(const files::ModelFile& read);
// Returns the fingerprint of a list of LoRA adapters. The fingerprint depends on the order of the adapters, because they are added to the
// weights in that order. It covers the bytes that were read from each adapter's file, and the name, factors, scale and layout of each
// module in the adapter.
std::uint64_t fingerprint(std::span<const model::LoraSpec> adapters);

}  // namespace pumice::engine
