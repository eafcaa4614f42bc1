// Converts the options of load() and plan() to the engine's types.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "core/backend.h"

namespace pumice::bindings {

// Both functions convert a name to an enum value. They throw invalid_argument with a list of the valid names if there is no such value.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

// Returns the names of the formats that load(quantize=) packs float weights to. These are all quantized formats that pack() writes.
std::vector<std::string> pack_formats();

void bind_options(pybind11::module_& module);

}  // namespace pumice::bindings
