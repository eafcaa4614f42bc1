// Binds _core.GenerateParams, the parameters of a request.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/sequence.h"

namespace pumice::bindings {

struct GenerateParams {
  engine::GenerateParams engine;
  // Python objects, or None. RequestHandle makes a token filter from `grammar` and a drafter from `draft`, gives `reasoning` to the engine,
  // and calls `logits_processor`.
  pybind11::object grammar = pybind11::none();           // CompiledGrammar
  pybind11::object reasoning = pybind11::none();         // ReasoningMarks
  pybind11::object draft = pybind11::none();             // Model
  pybind11::object logits_processor = pybind11::none();  // a callable that is called with (ids so far, row of logits)
};

void bind_params(pybind11::module_& module);

}  // namespace pumice::bindings
