// Binds requests for generation, their events, and the statistics of the running batch and of the cache.
#pragma once

#include <pybind11/pybind11.h>

#include "model.h"

namespace pumice::bindings {

void bind_requests(pybind11::module_& module, pybind11::class_<ModelHandle>& model);

}  // namespace pumice::bindings
