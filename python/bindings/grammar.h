// Binds compiled grammars, and the markers that begin and end reasoning (such as <think>). A request makes its token filters from these
// objects. Both need the bytes of all tokens of the vocabulary (TokenBytes). Grammars are compiled without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/grammar.h"
#include "engine/reasoning_budget.h"

namespace pumice::bindings {

struct GrammarHandle {
  std::shared_ptr<const engine::CompiledGrammar> grammar;
};

struct ReasoningHandle {
  std::shared_ptr<const engine::ReasoningMarks> marks;
};

void bind_grammars(pybind11::module_& module);

}  // namespace pumice::bindings
