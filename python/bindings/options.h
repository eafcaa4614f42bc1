// Converts the options of load() and plan() to the engine's types.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/backend.h"

namespace pumice::bindings {

// These convert names to values. An unknown name throws invalid_argument with the list of valid ones.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

void bind_options(pybind11::module_& module);

}  // namespace pumice::bindings
