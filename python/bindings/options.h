// The options of load() and plan(), as the engine takes them.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/backend.h"

namespace pumice::bindings {

// Names to values; an unknown name throws invalid_argument with the valid ones.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

void bind_options(pybind11::module_& module);

}  // namespace pumice::bindings
