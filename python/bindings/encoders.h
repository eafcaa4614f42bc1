// Binds the functions that compute vectors, token vectors and class scores of texts.
#pragma once

#include <pybind11/pybind11.h>

#include "model.h"

namespace pumice::bindings {

void bind_encoders(pybind11::module_& module, pybind11::class_<ModelHandle>& model);

}  // namespace pumice::bindings
