#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/backend.h"

namespace pumice::bindings {

// Option names to values; throw invalid_argument with the names there are.
KvFormat kv_format(const std::string& name);
Compute compute_mode(const std::string& name);

void bind_models(pybind11::module_& module);

}  // namespace pumice::bindings
