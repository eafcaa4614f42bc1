#include "grammar.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/llguidance_api.h"
#include "gil.h"
#include "interruptible.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

struct LibraryHandle {
  std::shared_ptr<const engine::llguidance::Library> library;
};

struct TokensHandle {
  std::shared_ptr<const engine::GrammarTokens> tokens;
};

struct FilterHandle {
  std::unique_ptr<engine::TokenFilter> filter;
  std::size_t words;
};

TokensHandle make_tokens(const LibraryHandle& library, const py::array_t<std::uint32_t, py::array::c_style>& lengths,
                         const py::bytes& bytes, const std::vector<std::uint32_t>& eos) {
  const std::string_view all(bytes);
  std::vector<std::uint32_t> sizes(lengths.data(), lengths.data() + lengths.size());
  std::vector<std::uint8_t> copied(all.begin(), all.end());
  TokensHandle made;
  interruptible([&](const Cancel& cancel) {
    made.tokens = engine::GrammarTokens::make(library.library, std::move(sizes), std::move(copied), eos, cancel);
  });
  return made;
}

GrammarHandle compile(const TokensHandle& tokens, const std::string& kind, const std::string& source) {
  GrammarHandle made;
  interruptible([&](const Cancel& cancel) { made.grammar = engine::CompiledGrammar::compile(tokens.tokens, kind, source, cancel); });
  return made;
}

py::array_t<std::uint32_t> mask(FilterHandle& handle) {
  py::array_t<std::uint32_t> words(static_cast<py::ssize_t>(handle.words));
  const std::span<std::uint32_t> target(words.mutable_data(), handle.words);
  const WithoutGil released;
  handle.filter->mask(target);
  return words;
}

}  // namespace

void bind_grammars(py::module_& module) {
  py::class_<LibraryHandle>(module, "GrammarLibrary")
      .def(py::init([](const std::string& path) { return LibraryHandle{engine::llguidance::Library::open(path)}; }), "path"_a)
      .def_property_readonly("version", [](const LibraryHandle& l) { return l.library->version(); })
      .def_property_readonly("missing", [](const LibraryHandle& l) { return l.library->missing; });
  py::class_<TokensHandle> tokens(module, "GrammarTokens");
  py::class_<GrammarHandle> grammar(module, "CompiledGrammar");
  py::class_<FilterHandle> filter(module, "GrammarFilter");
  tokens.def(py::init(&make_tokens), "library"_a, "lengths"_a, "bytes"_a, "eos"_a)
      .def_property_readonly("words", [](const TokensHandle& t) { return t.tokens->words(); })
      .def("compile", &compile, "kind"_a, "source"_a);
  grammar.def("filter", [](const GrammarHandle& g) { return FilterHandle{g.grammar->filter(), g.grammar->words()}; });
  filter.def("mask", &mask)
      .def("clone", [](const FilterHandle& f) { return FilterHandle{f.filter->clone(), f.words}; })
      .def("accept", [](FilterHandle& f, std::int32_t id) { return f.filter->accept(id); }, "id"_a);
}

}  // namespace pumice::bindings
