// Binds grammars. They are compiled without the GIL. A request makes its token filters from a compiled grammar.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/grammar.h"

namespace pumice::bindings {

struct GrammarHandle {
  std::shared_ptr<const engine::CompiledGrammar> grammar;
};

void bind_grammars(pybind11::module_& module);

}  // namespace pumice::bindings
