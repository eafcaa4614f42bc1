#include "encoders.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arrays.h"
#include "core/checked.h"
#include "counter.h"
#include "engine/embedder.h"
#include "engine/encode_queue.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

engine::Texts texts_of(const py::array& ids, const py::array& offsets, const std::optional<py::array>& types) {
  engine::Texts texts{.ids = ids_of(ids), .offsets = values<std::int64_t>(offsets, 1, "offsets"), .types = {}};
  require(!texts.offsets.empty(), "offsets must have one value more than there are texts");
  if (types) texts.types = values<std::int32_t>(*types, 1, "types");
  return texts;
}

engine::EncodeCall encode_call(const py::array& ids, const py::array& offsets, const std::optional<py::array>& types, py::array& out,
                               bool normalize, std::int32_t prompt) {
  engine::EncodeCall call{.texts = texts_of(ids, offsets, types), .normalize = normalize};
  call.texts.prompt = prompt;
  const auto rows = values<float>(out, 2, "out");
  require(out.writeable(), "out is not writable");
  require(out.shape(0) == static_cast<py::ssize_t>(call.texts.offsets.size() - 1), "out has ", out.shape(0), " rows for ",
          call.texts.offsets.size() - 1, " texts");
  call.d = checked_narrow<std::int32_t>(out.shape(1)).value_or(0);
  call.out = {const_cast<float*>(rows.data()), rows.size()};
  return call;
}

void encode(const ModelHandle& handle, const py::array& ids, const py::array& offsets, const std::optional<py::array>& types,
            py::array& out, bool normalize, std::int64_t token_budget, std::optional<py::function> progress, std::int32_t prompt,
            const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const auto [texts, target, d, norm, none] = encode_call(ids, offsets, types, out, normalize, prompt);
  if (cancel) {
    const WithoutGil released;
    if (token_budget != 0) return engine::encode(m->runtime(engine::Task::vectors), texts, target, d, normalize, token_budget, {}, *cancel);
    return m->queue(engine::Task::vectors).encode(texts, target, d, normalize, *cancel);
  }
  Counter counter(std::move(progress));
  const auto arguments = [](std::uint64_t done) { return py::make_tuple(done); };
  engine::Runtime& runtime = m->runtime(engine::Task::vectors);
  handle.compute(
      texts.ids.size(),
      [&](const Cancel& cancel) {
        engine::encode(
            runtime, texts, target, d, normalize, token_budget, [&](std::int64_t done) { counter.set(static_cast<std::uint64_t>(done)); },
            cancel);
      },
      counter.poll(arguments));
  counter.finish(texts.offsets.size() - 1, arguments);
}

// Encodes the texts of several small calls in one batch. Each call is a tuple (ids, offsets, types, out, normalize, prompt) and has its own
// Cancel. Returns for each call whether it succeeded. The Python package then repeats each failed call on its own, so that the call raises
// its own error.
std::vector<bool> encode_several(const ModelHandle& handle, const py::sequence& calls,
                                 const std::vector<std::shared_ptr<Cancel>>& cancels) {
  const auto m = handle.get();
  require(calls.size() == cancels.size(), calls.size(), " calls with ", cancels.size(), " cancels");
  std::vector<engine::EncodeCall> given;
  std::vector<const Cancel*> stops;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto call = calls[i].cast<py::tuple>();
    require(call.size() == 6 && cancels[i], "call ", i, " is not (ids, offsets, types, out, normalize, prompt) with a Cancel");
    auto out = call[3].cast<py::array>();
    given.push_back(encode_call(call[0].cast<py::array>(), call[1].cast<py::array>(), call[2].cast<std::optional<py::array>>(), out,
                                call[4].cast<bool>(), call[5].cast<std::int32_t>()));
    stops.push_back(cancels[i].get());
  }
  {
    const WithoutGil released;
    m->queue(engine::Task::vectors).encode(given, stops);
  }
  std::vector<bool> done;
  for (const engine::EncodeCall& call : given) done.push_back(!call.error);
  return done;
}

// Returns the sparse vectors of all texts as three arrays in CSR layout: (indices, values, offsets).
py::tuple encode_sparse(const ModelHandle& handle, const py::array& ids, const py::array& offsets, const std::optional<py::array>& types,
                        std::int32_t most, int logs, std::int64_t token_budget, std::optional<py::function> progress,
                        const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const engine::Texts texts = texts_of(ids, offsets, types);
  engine::Runtime& runtime = m->runtime(engine::Task::sparse);
  const engine::SparseCut cut{.most = most, .logs = logs};
  engine::SparseRows rows;
  if (cancel) {
    const WithoutGil released;
    rows = engine::encode_sparse(runtime, texts, cut, token_budget, {}, *cancel);
  } else {
    Counter counter(std::move(progress));
    const auto arguments = [](std::uint64_t done) { return py::make_tuple(done); };
    handle.compute(
        texts.ids.size(),
        [&](const Cancel& stop) {
          rows = engine::encode_sparse(
              runtime, texts, cut, token_budget, [&](std::int64_t done) { counter.set(static_cast<std::uint64_t>(done)); }, stop);
        },
        counter.poll(arguments));
    counter.finish(texts.offsets.size() - 1, arguments);
  }
  return py::make_tuple(to_array(rows.indices), to_array(rows.values), to_array(rows.offsets));
}

// Runs the pipeline of `runtime`. Returns an array of the shape (tokens, hidden_size), which has the pipeline's output row for each token.
py::array_t<float> rows_of_tokens(const ModelHandle& handle, engine::Runtime& runtime, const engine::Texts& texts,
                                  const std::shared_ptr<Cancel>& cancel) {
  py::array_t<float> out({static_cast<py::ssize_t>(texts.ids.size()), static_cast<py::ssize_t>(runtime.pipeline.hidden_size())});
  const auto target = writable(out);
  if (cancel) {
    const WithoutGil released;
    engine::encode_tokens(runtime, texts, target, {}, *cancel);
  } else {
    handle.compute(texts.ids.size(), [&](const Cancel& stop) { engine::encode_tokens(runtime, texts, target, {}, stop); });
  }
  return out;
}

py::array_t<float> encode_tokens(const ModelHandle& handle, const py::array& ids, const py::array& offsets,
                                 const std::optional<py::array>& types, const std::optional<py::array>& unseen,
                                 const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  engine::Texts texts = texts_of(ids, offsets, types);
  if (unseen) texts.unseen = values<std::int32_t>(*unseen, 1, "unseen");
  return rows_of_tokens(handle, m->runtime(engine::Task::token_vectors), texts, cancel);
}

py::array_t<float> label_tokens(const ModelHandle& handle, const py::array& ids, const py::array& offsets,
                                const std::optional<py::array>& types, const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  return rows_of_tokens(handle, m->runtime(engine::Task::token_labels), texts_of(ids, offsets, types), cancel);
}

py::array_t<float> classify(const ModelHandle& handle, const py::array& ids, const py::array& offsets,
                            const std::optional<py::array>& types, const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const engine::Texts texts = texts_of(ids, offsets, types);
  engine::Runtime& runtime = m->runtime(engine::Task::labels);
  const std::int32_t labels = runtime.pipeline.hidden_size();
  py::array_t<float> out({static_cast<py::ssize_t>(texts.offsets.size()) - 1, static_cast<py::ssize_t>(labels)});
  const auto target = writable(out);
  if (cancel) {
    const WithoutGil released;
    m->queue(engine::Task::labels).encode(texts, target, labels, false, *cancel);
  } else {
    handle.compute(texts.ids.size(), [&](const Cancel& stop) { engine::encode(runtime, texts, target, labels, false, 0, {}, stop); });
  }
  return out;
}

py::dict encode_stats(const ModelHandle& handle) {
  const auto m = handle.get();
  const engine::EncodeCounts::Stats s = m->encode_stats();
  return py::dict("waiting"_a = s.waiting, "texts"_a = s.texts, "tokens"_a = s.tokens, "runs"_a = s.runs,
                  "busy_seconds"_a = s.busy_seconds);
}

}  // namespace

void bind_encoders(py::module_& module, py::class_<ModelHandle>& model) {
  py::class_<Cancel, std::shared_ptr<Cancel>>(module, "Cancel")
      .def(py::init<>())
      .def("request", &Cancel::request)
      .def("begin", &Cancel::begin)
      .def_property_readonly("begun", &Cancel::begun)
      .def("check", &Cancel::check);
  model.def("encode_stats", &encode_stats)
      .def("encode", &encode, "ids"_a, "offsets"_a, "types"_a.none(true), "out"_a, "normalize"_a, "token_budget"_a,
           "progress"_a = py::none(), "prompt"_a = 0, "cancel"_a = py::none())
      .def("encode_several", &encode_several, "calls"_a, "cancels"_a)
      .def("encode_sparse", &encode_sparse, "ids"_a, "offsets"_a, "types"_a.none(true), "most"_a = 0, "logs"_a = 1, "token_budget"_a = 0,
           "progress"_a = py::none(), "cancel"_a = py::none())
      .def("encode_tokens", &encode_tokens, "ids"_a, "offsets"_a, "types"_a.none(true), "unseen"_a = py::none(), "cancel"_a = py::none())
      .def("label_tokens", &label_tokens, "ids"_a, "offsets"_a, "types"_a.none(true), "cancel"_a = py::none())
      .def("classify", &classify, "ids"_a, "offsets"_a, "types"_a.none(true), "cancel"_a = py::none());
}

}  // namespace pumice::bindings
