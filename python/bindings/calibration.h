// Binds _core.Calibration, which packs matrices with what they are multiplied by in texts.
#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

void bind_calibration(pybind11::module_& module);

}  // namespace pumice::bindings
