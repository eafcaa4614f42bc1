// Prefixes of texts on disk: their keys and values come back as pages of the prefix cache, which any call finds.
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

// A file that is damaged, cut or of another model is an error: its ids mean nothing here, or its owner should know. One that the same model
// made otherwise (another device, kv_dtype, quantize, version: other bits) is computed anew from its ids. All lengths are checked before
// anything is allocated, each page before anybody finds it.
LoadedPrefix load_prefix(const Model& model, const std::string& path, const Cancel& cancel);

}  // namespace pumice::engine
