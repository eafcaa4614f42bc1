#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

// Private: programs of any operations on numpy arrays, for tests and bench.
void bind_ops(pybind11::module_& module);

}  // namespace pumice::bindings
