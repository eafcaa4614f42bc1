#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

// Binds the private submodule `ops` for tests and bench. It runs programs of arbitrary operations on numpy arrays.
void bind_ops(pybind11::module_& module);

}  // namespace pumice::bindings
