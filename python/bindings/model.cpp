#include "model.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "counter.h"
#include "engine/diagnostics.h"
#include "engine/scorer.h"
#include "file.h"
#include "model/config_difference.h"
#include "model/gguf_form.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

using engine::LoadOptions;

py::dict placement_dict(const engine::Placement& p) {
  py::list rows, devices;
  for (const auto& row : p.rows) {
    rows.append(py::dict("name"_a = row.name, "device"_a = row.device, "weights"_a = row.weights, "kv"_a = row.kv, "state"_a = row.state,
                         "formats"_a = row.formats, "why"_a = row.why));
  }
  for (const auto& device : p.devices) {
    devices.append(py::dict("id"_a = device.id, "name"_a = device.name, "weights"_a = device.weights, "scratch"_a = device.scratch,
                            "kv_page"_a = device.kv_page, "state"_a = device.state, "memory_free"_a = device.memory_free));
  }
  py::object problem = py::none();
  if (p.problem) problem = py::str(p.problem->what());
  return py::dict("rows"_a = rows, "devices"_a = devices, "weights"_a = p.weights, "scratch"_a = p.scratch, "kv_budget"_a = p.kv_budget,
                  "kv_page"_a = p.kv_page, "state"_a = p.state, "memory_free"_a = p.memory_free, "n_ctx"_a = p.n_ctx, "notes"_a = p.notes,
                  "incomplete"_a = p.incomplete, "fallback"_a = p.fallback, "problem"_a = problem);
}

py::dict model_info(const ModelHandle& handle) {
  const auto m = handle.get();
  const auto& d = m->description();
  const auto& c = d.config;
  // "kv_heads" and "head_dim" of the model are those of the first layer with attention. If this is latent attention, they are those of its
  // cache.
  const auto attends = std::ranges::find_if(c.layers, [](const model::Layer& layer) { return layer.attention_heads() > 0; });
  const bool any = attends != c.layers.end();
  const model::Attention* first = any ? attends->if_attention() : nullptr;
  const CacheShape cache = !any ? CacheShape{} : first ? first->cache_shape() : attends->if_latent_attention()->cache_shape();
  std::vector<std::string> tasks;
  if (m->generates()) tasks.push_back("generate");
  tasks.insert(m->encodes_first() ? tasks.begin() : tasks.end(), "encode");
  if (d.gives_sparse()) tasks.push_back("sparse");
  if (d.labels > 0) tasks.push_back(d.labels_tokens() ? "label" : "classify");
  std::string pooling;
  for (const PoolKind kind : d.pooling) pooling += (pooling.empty() ? "" : "+") + std::string(model::name(kind));
  std::map<std::string, std::uint64_t> formats;
  for (std::size_t i = 0; i < d.weights.matrices.size(); ++i) {
    const Matrix& matrix = d.weights.matrices[i];
    if (std::ranges::find(d.copies, static_cast<MatrixId>(i)) != d.copies.end()) continue;
    formats[std::string(name(matrix.format))] += static_cast<std::uint64_t>(matrix.rows * row_bytes(matrix.format, matrix.cols));
  }
  const engine::Placement& p = m->placement();
  py::list devices;
  std::string ids;
  std::int64_t gpu_layers = 0, gpu_experts = 0;
  py::object threads = py::none();
  for (const engine::StagePlan& stage : p.stages) {
    const engine::PlacedDevice& device = p.devices[stage.device];
    const std::size_t layers = stage.last - stage.first;
    ids += (ids.empty() ? "" : " + ") + device.id;
    devices.append(py::dict("id"_a = device.id, "name"_a = device.name, "layers"_a = layers));
    if (device.id == "cpu") {
      threads = py::int_(device.backend->workers());
    } else {
      gpu_layers += static_cast<std::int64_t>(layers);
      for (std::size_t l = stage.first + stage.away; l < stage.last; ++l) gpu_experts += c.layers[l].if_mixture() ? 1 : 0;
    }
  }
  // Adds the device that computes experts, if it computes no whole layer and so is not in the list yet.
  if (p.experts_device && ids.find(p.devices[*p.experts_device].id) == std::string::npos) {
    const engine::PlacedDevice& device = p.devices[*p.experts_device];
    ids += " + " + device.id;
    devices.append(py::dict("id"_a = device.id, "name"_a = device.name, "layers"_a = 0));
    threads = py::int_(device.backend->workers());
  }
  std::uint64_t side_parameters = 0;
  for (const model::SidePart& side : d.sides) side_parameters += side.own ? side.own->parameters : 0;
  return py::dict("architecture"_a = std::string(c.family->name), "tasks"_a = tasks, "parameters"_a = d.parameters,
                  "assistant_parameters"_a = side_parameters, "layers"_a = c.layers.size(), "hidden_size"_a = c.hidden_size,
                  "vector_size"_a = d.vector_size(), "vocab_size"_a = d.vocab_size, "heads"_a = any ? attends->attention_heads() : 0,
                  "kv_heads"_a = cache.heads, "head_dim"_a = cache.key_dim, "n_ctx"_a = p.n_ctx, "n_ctx_model"_a = c.n_ctx,
                  "formats"_a = formats, "file_bytes"_a = m->file().size_bytes(), "labels"_a = d.labels, "pooling"_a = pooling,
                  "threads"_a = threads, "isa"_a = engine::isa(), "device"_a = ids, "devices"_a = devices, "gpu_layers"_a = gpu_layers,
                  "gpu_experts"_a = gpu_experts);
}

py::dict memory(const ModelHandle& handle) {
  const auto m = handle.get();
  const auto& p = m->placement();
  engine::PagePool::Stats stats;
  if (m->generates()) stats = m->decoder().pages->stats();
  const auto bytes = [&](std::int64_t pages, std::int64_t states) {
    return static_cast<std::uint64_t>(pages) * stats.page_bytes + static_cast<std::uint64_t>(states) * stats.state_bytes;
  };
  return py::dict(
      "weights"_a = p.weights, "kv_budget"_a = p.kv_budget, "kv_reserved"_a = bytes(stats.pages_reserved, stats.states_reserved),
      "kv_used"_a = bytes(stats.pages_in_use + stats.pages_cached, stats.states_in_use + stats.states_cached), "scratch"_a = p.scratch);
}

// ---------------------------------------------------------------- load
std::unique_ptr<ModelHandle> load(std::shared_ptr<files::ModelFile> file, const LoadOptions& options, std::optional<py::function> progress,
                                  const std::shared_ptr<Cancel>& stop) {
  Counter counter(std::move(progress));
  std::atomic<std::uint64_t> total{0};
  const auto arguments = [&](std::uint64_t done) { return py::make_tuple(done, std::max(done, total.load())); };
  std::shared_ptr<engine::Model> model;
  std::function<void()> poll = counter.poll(arguments);
  if (stop) {
    poll = [stop, counts = std::move(poll)] {
      stop->check();
      if (counts) counts();
    };
  }
  interruptible(
      [&](const Cancel& cancel) {
        total = file->size_bytes() + (options.assistant ? options.assistant->size_bytes() : 0);
        model = engine::Model::load(file, options, [&](std::uint64_t bytes) { counter.set(bytes); }, cancel);
      },
      poll);
  counter.finish(total, [](std::uint64_t bytes) { return py::make_tuple(bytes, bytes); });
  return std::make_unique<ModelHandle>(std::move(model));
}

py::list config_differences(const files::ModelFile& file, const files::ModelFile& other) {
  py::list out;
  for (const auto& [field, text] : model::differences(model::read_config(file), model::read_config(other)))
    out.append(py::make_tuple(field, text));
  return out;
}

py::object indices(const std::vector<std::int64_t>& rows) {
  if (rows.empty()) return py::none();
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

py::dict gguf_parts(const files::ModelFile& folder) {
  py::dict out;
  for (const auto& [name, parts] : model::gguf_parts(folder)) {
    py::list list;
    for (const model::GgufPart& part : parts) {
      py::list factors;
      for (const std::vector<float>& numbers : part.factors)
        factors.append(py::array_t<float>(static_cast<py::ssize_t>(numbers.size()), numbers.data()));
      list.append(py::dict("name"_a = part.name, "taps"_a = part.taps, "transposed"_a = part.transposed, "whole"_a = part.whole,
                           "rows"_a = indices(part.rows), "columns"_a = indices(part.columns), "matrices"_a = part.matrices,
                           "turned"_a = part.turned, "width"_a = part.width, "plus_one"_a = part.plus_one, "pairs"_a = part.pairs,
                           "minus_exp"_a = part.minus_exp, "normalised"_a = part.normalised, "factors"_a = factors));
    }
    out[py::str(name)] = list;
  }
  return out;
}

py::dict gguf_head(const files::ModelFile& folder) {
  const model::GgufHead head = model::gguf_head(folder);
  py::dict keys, tensors;
  for (const auto& [key, value] : head.keys) keys[py::str(key)] = to_python(value);
  for (const auto& [name, values] : head.tensors)
    tensors[py::str(name)] = py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
  return py::dict("family"_a = head.family, "architecture"_a = head.architecture, "keys"_a = keys, "tensors"_a = tensors,
                  "folded"_a = head.folded, "generates"_a = head.generates);
}

py::dict plan(std::shared_ptr<files::ModelFile> file, const LoadOptions& options) {
  engine::Placement placement;
  interruptible([&](const Cancel&) { placement = engine::plan(file, options); });
  return placement_dict(placement);
}

// ---------------------------------------------------------------- looking inside a model
py::array_t<float> hidden_states(const ModelHandle& handle, const py::array& ids, const py::array& layers) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids), asked = ids_of(layers);
  py::array_t<float> out({static_cast<py::ssize_t>(asked.size()), static_cast<py::ssize_t>(tokens.size()),
                          static_cast<py::ssize_t>(m->description().config.hidden_size)});
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { m->inspector().hidden_states(tokens, asked, target, cancel); });
  return out;
}

py::array_t<float> attentions(const ModelHandle& handle, const py::array& ids, std::int64_t layer) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  const auto& layers = m->description().config.layers;
  require(layer >= 0 && layer < static_cast<std::int64_t>(layers.size()), "layer ", layer, " is not 0 to ", layers.size() - 1);
  const std::int32_t all_heads = layers[static_cast<std::size_t>(layer)].attention_heads();
  if (all_heads == 0) {
    std::string others;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].attention_heads() > 0) others += (others.empty() ? "" : ", ") + std::to_string(i + 1);
    }
    fail(ErrorKind::invalid_argument, "layer ", layer + 1, " has no attention; ",
         others.empty() ? "no layer of this model has it" : str("the layers with attention are ", others, " (1 is the first)"));
  }
  const auto n = static_cast<py::ssize_t>(tokens.size()), heads = static_cast<py::ssize_t>(all_heads);
  py::array_t<float> out({heads, n, n});
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { m->inspector().attentions(tokens, static_cast<std::size_t>(layer), target, cancel); });
  return out;
}

py::array_t<float> logits(const ModelHandle& handle, const py::array& ids, bool all_positions) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  engine::Runtime& runtime = m->decoder();
  const auto vocab = static_cast<py::ssize_t>(runtime.pipeline.vocab_size());
  const auto rows = static_cast<py::ssize_t>(tokens.size());
  runtime.check_ids(tokens, "prompt", 0);
  require(rows >= 1, "ids is empty; logits need at least one token");
  if (rows > runtime.n_ctx) fail(ErrorKind::context_length, rows, " tokens do not fit into the context of ", runtime.n_ctx);
  py::array_t<float> out(all_positions ? std::vector<py::ssize_t>{rows, vocab} : std::vector<py::ssize_t>{vocab});
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { engine::logits(m->scheduler(), tokens, all_positions, target, cancel); });
  return out;
}

// Returns the log-probability of each token but the first. If `top` is given, returns a tuple of three arrays: these log-probabilities, the
// ids of the `top` most likely tokens at each position, and the log-probabilities of those tokens.
py::object score(const ModelHandle& handle, const py::array& ids, std::optional<std::int32_t> top, const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  require(!tokens.empty(), "ids is empty; a score needs at least one token");
  const std::int32_t vocab = m->decoder().pipeline.vocab_size();
  if (top) require(*top >= 1 && *top <= vocab, "top is ", *top, "; it must be 1 to ", vocab, ", the size of the vocabulary");
  const auto rows = static_cast<py::ssize_t>(tokens.size()) - 1, count = static_cast<py::ssize_t>(top.value_or(0));
  py::array_t<float> out(rows), log_probs({rows, count});
  py::array_t<std::int32_t> top_ids({rows, count});
  const auto target = writable(out);
  const engine::Likeliest likeliest{.count = top.value_or(0),
                                    .ids = {top_ids.mutable_data(), static_cast<std::size_t>(top_ids.size())},
                                    .log_probs = writable(log_probs)};
  const auto compute = [&](const Cancel& stop) { engine::score(m->scheduler(), tokens, target, stop, likeliest); };
  if (cancel) {
    const WithoutGil released;
    compute(*cancel);
  } else {
    interruptible(compute);
  }
  if (!top) return out;
  return py::make_tuple(out, top_ids, log_probs);
}

}  // namespace

void bind_model(py::module_& module, py::class_<ModelHandle>& model) {
  model.def_property_readonly("info", &model_info)
      .def("placement", [](const ModelHandle& handle) { return placement_dict(handle.get()->placement()); })
      .def("memory", &memory)
      .def("hidden_states", &hidden_states, "ids"_a, "layers"_a)
      .def("attentions", &attentions, "ids"_a, "layer"_a)
      .def("logits", &logits, "ids"_a, "all_positions"_a)
      .def("score", &score, "ids"_a, "top"_a = py::none(), "cancel"_a = py::none())
      .def("close", &ModelHandle::close);
  module.def("plan", &plan, "file"_a, "options"_a);
  module.def("config_differences", &config_differences, "file"_a, "other"_a);
  module.def("gguf_parts", &gguf_parts, "folder"_a);
  module.def("gguf_head", &gguf_head, "folder"_a);
  module.def("load", &load, "file"_a, "options"_a, "progress"_a = py::none(), "stop"_a = py::none());
}

}  // namespace pumice::bindings
