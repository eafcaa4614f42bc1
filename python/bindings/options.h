// Converts the options of load() and plan() to the engine's types.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "core/backend.h"

namespace pumice::bindings {

// Convert names to enum values. Throw invalid_argument with the list of valid names if `name` is not one of them.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

// Returns the names of the formats that load(quantize=) packs float weights to: all quantized ones that pack() writes.
std::vector<std::string> pack_formats();

void bind_options(pybind11::module_& module);

}  // namespace pumice::bindings
