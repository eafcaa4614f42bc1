// Keys and values of prefixes in files. A loaded prefix is pages of the prefix cache, which every call can share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "engine/model.h"

namespace pumice::engine {

// Computes what of `ids` is not cached yet, and writes it all (files/prefix_file.h): bytes of the file.
std::uint64_t save_prefix(const Model& model, const std::string& path, std::span<const std::int32_t> ids, const Cancel& cancel);

struct LoadedPrefix {
  std::vector<std::int32_t> ids;
  std::string recomputed;  // why its pages could not be taken as they are, and were computed from the ids; empty: they were
};

// A file that is damaged, cut or of another model is an error. One that the same model made with other bits (another device, kv_dtype,
// quantize, version) is computed anew from its ids. All lengths are checked before anything is allocated, and each page before it enters
// the prefix cache.
LoadedPrefix load_prefix(const Model& model, const std::string& path, const Cancel& cancel);

}  // namespace pumice::engine
