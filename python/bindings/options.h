// What load() and plan() are told, as the engine takes it.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/backend.h"

namespace pumice::bindings {

// Names to values; throw invalid_argument with the names there are.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

void bind_options(pybind11::module_& module);

}  // namespace pumice::bindings
