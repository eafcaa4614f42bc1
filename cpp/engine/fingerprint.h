// Which model it is, for files that hold keys and values.
#pragma once

#include <cstdint>
#include <span>

#include "files/model_file.h"
#include "model/lora.h"

namespace pumice::engine {

// Of a view that sums what is read (ModelFile::summed()), once all is read: the file's numbers (its metadata but for names and what belongs
// to its tokenizer), its tensors' names, formats and shapes, and every byte that was read of them, as it was when it was read.
std::uint64_t fingerprint(const files::ModelFile& read);
// Of adapters, in the order in which they are added: what was read of each, and by how much its factors count.
std::uint64_t fingerprint(std::span<const model::LoraSpec> adapters);

}  // namespace pumice::engine
