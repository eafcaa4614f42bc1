// Binds _core.Calibration, which packs weights to a quantized format. It runs some texts through the model, and chooses codes so that the
// error of the products with the activations of these texts is small.
#pragma once

#include <pybind11/pybind11.h>

namespace pumice::bindings {

void bind_calibration(pybind11::module_& module);

}  // namespace pumice::bindings
