// Saves the keys and values of prefixes to files, and loads them. A loaded prefix becomes pages of the prefix cache, so every call can
// share it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "engine/model.h"

namespace pumice::engine {

// Writes `ids` with their keys and values to a file (files/prefix_file.h). Computes the keys and values that the prefix cache lacks.
// Returns the size of the file in bytes.
std::uint64_t save_prefix(const Model& model, const std::string& path, std::span<const std::int32_t> ids, const Cancel& cancel);

struct LoadedPrefix {
  std::vector<std::int32_t> ids;
  std::string recomputed;  // why keys and values were computed anew from the ids; empty if the file's keys and values were used
};

// Loads a prefix. Throws if the file is damaged, truncated, or from another model. If the same model made the file with another device,
// kv_dtype, quantize or version, the file's keys and values are not used, because some of their bits may differ. They are then computed
// anew from the file's ids. All lengths are checked before memory is allocated, and each page before it enters the prefix cache.
LoadedPrefix load_prefix(const Model& model, const std::string& path, const Cancel& cancel);

}  // namespace pumice::engine
