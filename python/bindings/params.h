// _core.GenerateParams: what a request is told.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/sequence.h"

namespace pumice::bindings {

struct GenerateParams {
  engine::GenerateParams engine;
  // Python's own objects; None: none. RequestHandle makes a filter, a drafter and calls of them.
  pybind11::object grammar = pybind11::none();           // CompiledGrammar
  pybind11::object draft = pybind11::none();             // Model
  pybind11::object logits_processor = pybind11::none();  // a function of ids and a row
};

void bind_params(pybind11::module_& module);

}  // namespace pumice::bindings
