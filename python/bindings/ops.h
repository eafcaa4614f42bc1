#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

// Private, for tests and bench: runs programs of any operations on numpy arrays.
void bind_ops(pybind11::module_& module);

}  // namespace pumice::bindings
