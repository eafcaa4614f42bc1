// Translates C++ exceptions of the engine to the exception classes of pumice.errors.
#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

void bind_errors(pybind11::module_& module);

}  // namespace pumice::bindings
