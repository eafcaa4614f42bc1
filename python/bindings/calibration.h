// Binds _core.Calibration, which packs weights to a format and chooses the codes by the activations that some texts produce.
#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

void bind_calibration(pybind11::module_& module);

}  // namespace pumice::bindings
