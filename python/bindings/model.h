#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

void bind_models(pybind11::module_& module);

}  // namespace pumice::bindings
