#include "grammar.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
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

struct BytesHandle {
  std::shared_ptr<const engine::TokenBytes> bytes;
};

struct TokensHandle {
  std::shared_ptr<const engine::GrammarTokens> tokens;
};

struct FilterHandle {
  std::unique_ptr<engine::TokenFilter> filter;
  std::size_t words;
};

BytesHandle make_bytes(const py::array_t<std::uint32_t, py::array::c_style>& lengths, const py::bytes& bytes) {
  const std::string_view all(bytes);
  const std::span sizes(lengths.data(), static_cast<std::size_t>(lengths.size()));
  return {std::make_shared<const engine::TokenBytes>(sizes, std::vector<std::uint8_t>(all.begin(), all.end()))};
}

TokensHandle make_tokens(const LibraryHandle& library, const BytesHandle& bytes, const std::vector<std::uint32_t>& eos) {
  TokensHandle made;
  interruptible([&](const Cancel& cancel) { made.tokens = engine::GrammarTokens::make(library.library, bytes.bytes, eos, cancel); });
  return made;
}

ReasoningHandle make_reasoning(const BytesHandle& tokens, const py::bytes& open, const py::bytes& close,
                               const std::vector<std::int32_t>& close_ids, const py::bytes& call, const std::vector<std::int32_t>& again,
                               bool leads) {
  const auto marker = [](const py::bytes& text) { return engine::Marker(std::string_view(text)); };
  engine::ReasoningMarks marks{tokens.bytes, marker(open), marker(close), close_ids, marker(call), again, {}, leads};
  const WithoutGil released;
  if (marks.open.size() > 0) marks.openers = engine::tokens_with(marks.open, *marks.tokens);
  return {std::make_shared<const engine::ReasoningMarks>(std::move(marks))};
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
  py::class_<BytesHandle>(module, "TokenBytes").def(py::init(&make_bytes), "lengths"_a, "bytes"_a);
  py::class_<TokensHandle> tokens(module, "GrammarTokens");
  py::class_<GrammarHandle> grammar(module, "CompiledGrammar");
  py::class_<FilterHandle> filter(module, "GrammarFilter");
  py::class_<ReasoningHandle> reasoning(module, "ReasoningMarks");
  reasoning.def(py::init(&make_reasoning), "tokens"_a, "open"_a, "close"_a, "close_ids"_a, "call"_a, "again"_a, "leads"_a);
  tokens.def(py::init(&make_tokens), "library"_a, "tokens"_a, "eos"_a)
      .def_property_readonly("words", [](const TokensHandle& t) { return t.tokens->words(); })
      .def("compile", &compile, "kind"_a, "source"_a);
  reasoning.def(
      "filter",
      [](const ReasoningHandle& r, std::int64_t most, bool opened) {
        const auto words = static_cast<std::size_t>(mask_words(static_cast<std::int64_t>(r.marks->tokens->size())));
        return FilterHandle{engine::reasoning_budget(r.marks, most, opened), words};
      },
      "most"_a, "opened"_a);
  grammar.def("filter", [](const GrammarHandle& g) { return FilterHandle{g.grammar->filter(), g.grammar->words()}; });
  filter.def("mask", &mask)
      .def("clone", [](const FilterHandle& f) { return FilterHandle{f.filter->clone(), f.words}; })
      .def("accept", [](FilterHandle& f, std::int32_t id) { return f.filter->accept(id); }, "id"_a);
}

}  // namespace pumice::bindings
