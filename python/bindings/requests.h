// Requests for tokens, their news, and what their batch and its cache do.
#pragma once

#include <pybind11/pybind11.h>

#include "model.h"

namespace pumice::bindings {

void bind_requests(pybind11::module_& module, pybind11::class_<ModelHandle>& model);

}  // namespace pumice::bindings
