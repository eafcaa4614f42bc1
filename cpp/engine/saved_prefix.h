// Keys and values of prefixes in files. A loaded prefix is pages of the prefix cache, which every call can share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "engine/model.h"

namespace pumice::engine {

// Computes what is not cached yet of `ids`, and writes all of it (files/prefix_file.h). Returns the size of the file in bytes.
std::uint64_t save_prefix(const Model& model, const std::string& path, std::span<const std::int32_t> ids, const Cancel& cancel);

struct LoadedPrefix {
  std::vector<std::int32_t> ids;
  std::string recomputed;  // why its pages were computed anew from the ids; empty if they were used as they are
};

// A file that is damaged, cut or of another model is an error. One that the same model made with other bits (another device, kv_dtype,
// quantize, version) is computed anew from its ids. All lengths are checked before anything is allocated, and each page before it enters
// the prefix cache.
LoadedPrefix load_prefix(const Model& model, const std::string& path, const Cancel& cancel);

}  // namespace pumice::engine
