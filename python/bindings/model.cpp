#include "model.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "core/checked.h"
#include "engine/diagnostics.h"
#include "engine/embedder.h"
#include "engine/model.h"
#include "engine/request.h"
#include "engine/saved_prefix.h"
#include "engine/scorer.h"
#include "file.h"
#include "gil.h"
#include "grammar.h"
#include "interruptible.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {

KvFormat kv_format(const std::string& name) {
  for (std::size_t f = 0; f < std::size(kKvFormats); ++f) {
    if (name == kKvFormats[f]) return static_cast<KvFormat>(f);
  }
  fail(ErrorKind::invalid_argument, "kv_dtype=\"", name, "\" is not known; there are \"f16\", \"f32\" and \"q8_0\"");
}

Compute compute_mode(const std::string& name) {
  if (name == "auto") return Compute::automatic;
  if (name == "float32") return Compute::float32;
  fail(ErrorKind::invalid_argument, "compute=\"", name, "\" is not known; there are \"auto\" and \"float32\"");
}

namespace {

using engine::LoadOptions;

// ---------------------------------------------------------------- arrays
// Arguments are contiguous arrays of the exact type (Python converts before); what is not, is a TypeError with what was found.
template <class T>
std::span<const T> values(const py::array& array, int dims, const char* name) {
  if (!py::isinstance<py::array_t<T>>(array) || array.ndim() != dims || !(array.flags() & py::array::c_style)) {
    fail(ErrorKind::wrong_type, name, " must be a C-contiguous ", dims, "-dimensional array of ", text_of(py::dtype::of<T>()),
         ", found ", array.ndim(), " dimensions of ", text_of(array.dtype()));
  }
  return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

std::span<const std::int32_t> ids_of(const py::array& array) { return values<std::int32_t>(array, 1, "ids"); }

engine::Texts texts_of(const py::array& ids, const py::array& offsets, const std::optional<py::array>& types) {
  engine::Texts texts{.ids = ids_of(ids), .offsets = values<std::int64_t>(offsets, 1, "offsets"), .types = {}};
  require(!texts.offsets.empty(), "offsets must have one value more than there are texts");
  if (types) texts.types = values<std::int32_t>(*types, 1, "types");
  return texts;
}

template <class T>
py::array_t<T> to_array(const std::vector<T>& from) { return py::array_t<T>(static_cast<py::ssize_t>(from.size()), from.data()); }

template <class T>
py::array_t<T> to_array(const std::vector<T>& from, py::ssize_t columns) {
  const py::ssize_t rows = columns == 0 ? 0 : static_cast<py::ssize_t>(from.size()) / columns;
  return py::array_t<T>({rows, columns}, from.data());
}

std::span<float> writable(py::array_t<float>& array) { return {array.mutable_data(), static_cast<std::size_t>(array.size())}; }

// ---------------------------------------------------------------- options
Format weight_format(const std::string& name) {
  const auto format = format_from_name(name);
  if (!format || !can_pack(*format) || !info(*format).quantized) {
    fail(ErrorKind::invalid_argument, "quantize=\"", name, "\" is not known; there are \"q8_0\", \"q4_0\" and \"q4_k\"");
  }
  return *format;
}

model::ModuleSpec module_spec(const py::dict& module) {
  const auto get = [&]<class T>(const char* key, T otherwise) { return module.contains(key) ? module[key].cast<T>() : otherwise; };
  return {.kind = model::module_from_name(module["kind"].cast<std::string>()),
          .on_tokens = get("on_tokens", false),
          .file = file_name(get("file", py::str())),
          .in = get("in_features", std::int64_t{0}),
          .out = get("out_features", std::int64_t{0}),
          .bias = get("bias", false),
          .residual = get("residual", false),
          .activation = model::activation_from_name(get("activation", std::string("none")))};
}

model::LoraSpec lora_spec(const py::dict& d) {
  model::LoraSpec spec{.file = d["file"].cast<std::shared_ptr<files::ModelFile>>(), .modules = {}};
  for (const py::handle each : d["modules"]) {
    const auto [name, a, b, scale, layout] = each.cast<std::tuple<std::string, std::string, std::string, float, std::string>>();
    require(layout == "linear" || layout == "embedding" || layout == "embedding_rows", "lora: layout ", layout);
    spec.modules.push_back({.name = name, .a = a, .b = b, .scale = scale,
                            .layout = layout == "linear"      ? model::LoraLayout::linear
                                      : layout == "embedding" ? model::LoraLayout::embedding
                                                              : model::LoraLayout::embedding_rows});
  }
  return spec;
}

LoadOptions make_options(const std::string& device, std::optional<std::int64_t> gpu_layers, const std::optional<std::string>& quantize,
                         std::optional<std::int64_t> n_ctx, const std::string& kv_dtype, std::optional<std::int64_t> kv_budget,
                         const std::string& compute, std::optional<std::int64_t> threads, const std::vector<std::string>& pooling,
                         const std::vector<py::dict>& modules, const std::vector<std::int32_t>& score_ids,
                         const std::optional<std::string>& task, const std::vector<py::dict>& lora) {
  LoadOptions options;
  options.device = device;
  options.gpu_layers = gpu_layers;
  if (quantize) options.quantize = weight_format(*quantize);
  options.n_ctx = n_ctx;
  options.kv_format = kv_format(kv_dtype);
  if (kv_budget) {
    require(*kv_budget > 0, "kv_budget is ", *kv_budget, "; it must be a positive number of bytes");
    options.kv_budget = static_cast<std::uint64_t>(*kv_budget);
  }
  options.compute = compute_mode(compute);
  if (threads) {
    require(*threads >= 1 && *threads <= 1024, "threads is ", *threads, "; it must lie between 1 and 1024");
    options.threads = static_cast<int>(*threads);
  }
  for (const std::string& name : pooling) options.pooling.push_back(model::pooling_from_name(name));
  for (const py::dict& module : modules) options.modules.push_back(module_spec(module));
  options.score_ids = score_ids;
  options.task = task.value_or("");
  for (const py::dict& spec : lora) options.lora.push_back(lora_spec(spec));
  return options;
}

// ---------------------------------------------------------------- what a model tells
py::dict placement_dict(const engine::Placement& p) {
  py::list rows, devices;
  for (const auto& row : p.rows) {
    rows.append(py::dict("name"_a = row.name, "device"_a = row.device, "weights"_a = row.weights, "kv"_a = row.kv,
                         "formats"_a = row.formats, "why"_a = row.why));
  }
  for (const auto& device : p.devices) {
    devices.append(py::dict("id"_a = device.id, "name"_a = device.name, "weights"_a = device.weights, "scratch"_a = device.scratch,
                            "kv_page"_a = device.kv_page, "memory_free"_a = device.memory_free));
  }
  py::object problem = py::none();
  if (p.problem) problem = py::str(p.problem->what());
  return py::dict("rows"_a = rows, "devices"_a = devices, "weights"_a = p.weights, "scratch"_a = p.scratch, "kv_budget"_a = p.kv_budget,
                  "kv_page"_a = p.kv_page, "memory_free"_a = p.memory_free, "n_ctx"_a = p.n_ctx, "notes"_a = p.notes,
                  "incomplete"_a = p.incomplete, "fallback"_a = p.fallback, "problem"_a = problem);
}

// A model that close() can empty. Running calls hold the inner pointer for themselves.
class Handle {
 public:
  explicit Handle(std::shared_ptr<engine::Model> model) : model_(std::move(model)) {}

  std::shared_ptr<engine::Model> get() const {
    if (!model_) fail(ErrorKind::invalid_argument, "this model is closed; load it again");
    return model_;
  }
  // The weights go when the last running call and the last request are done. Without the GIL: giving back gigabytes takes time.
  void close() {
    auto last = std::move(model_);
    model_.reset();
    const WithoutGil released;
    if (last && last->generates()) last->scheduler().wake_pump();  // whose thread keeps it otherwise
    last.reset();
  }
  // interruptible(), for work that begins anew with each call.
  void compute(std::size_t tokens, const std::function<void(const Cancel&)>& work, const std::function<void()>& poll = {}) const {
    const auto start = Cancel::Clock::now();
    interruptible(work, poll, times_.brief(tokens));
    times_.saw(tokens, Cancel::Clock::now() - start);
  }

 private:
  std::shared_ptr<engine::Model> model_;  // changed under the GIL
  mutable CallTimes times_;
};

py::dict model_info(const Handle& handle) {
  const auto m = handle.get();
  const auto& d = m->description();
  const auto& c = d.config;
  const model::Attention& first = c.layers.front().attention;
  std::vector<std::string> tasks;
  if (m->generates()) tasks.push_back("generate");
  tasks.insert(m->encodes_first() ? tasks.begin() : tasks.end(), "encode");
  if (d.labels > 0) tasks.push_back("classify");
  std::string pooling;
  for (const PoolKind kind : d.pooling) pooling += (pooling.empty() ? "" : "+") + std::string(model::name(kind));
  std::map<std::string, std::uint64_t> formats;
  for (const Matrix& matrix : d.weights.matrices) {
    formats[std::string(name(matrix.format))] += static_cast<std::uint64_t>(matrix.rows * row_bytes(matrix.format, matrix.cols));
  }
  const engine::Placement& p = m->placement();
  py::list devices;
  std::string ids;
  std::int64_t gpu_layers = 0;
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
    }
  }
  return py::dict("architecture"_a = std::string(c.family->name), "tasks"_a = tasks, "parameters"_a = d.parameters,
                  "layers"_a = c.layers.size(), "hidden_size"_a = c.hidden_size, "vector_size"_a = d.vector_size(),
                  "vocab_size"_a = d.vocab_size, "heads"_a = first.heads, "kv_heads"_a = first.kv_heads,
                  "head_dim"_a = first.head_dim, "n_ctx"_a = p.n_ctx, "n_ctx_model"_a = c.n_ctx, "formats"_a = formats,
                  "file_bytes"_a = m->file().size_bytes(), "labels"_a = d.labels, "pooling"_a = pooling, "threads"_a = threads,
                  "isa"_a = engine::isa(), "device"_a = ids, "devices"_a = devices, "gpu_layers"_a = gpu_layers);
}

py::dict memory(const Handle& handle) {
  const auto m = handle.get();
  const auto& p = m->placement();
  engine::PagePool::Stats stats;
  if (m->generates()) stats = m->decoder().pages->stats();
  return py::dict("weights"_a = p.weights, "kv_budget"_a = p.kv_budget,
                  "kv_reserved"_a = static_cast<std::uint64_t>(stats.pages_reserved) * stats.page_bytes,
                  "kv_used"_a = static_cast<std::uint64_t>(stats.pages_in_use + stats.pages_cached) * stats.page_bytes,
                  "scratch"_a = p.scratch);
}

py::dict cache_stats(const Handle& handle) {
  const auto stats = handle.get()->decoder().pages->stats();
  return py::dict("prompt_tokens"_a = stats.prompt_tokens, "reused_tokens"_a = stats.reused_tokens, "pages_in_use"_a = stats.pages_in_use,
                  "pages_cached"_a = stats.pages_cached, "pages_evicted"_a = stats.pages_evicted);
}

// ---------------------------------------------------------------- load
// A count that workers raise and the calling thread shows: poll() calls `callback` when it has moved, ten times a second at most.
class Counter {
 public:
  explicit Counter(std::optional<py::function> callback) : callback_(std::move(callback)) {}
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::function<void()> poll(std::function<py::tuple(std::uint64_t)> arguments) {
    if (!callback_) return {};
    return [this, arguments = std::move(arguments)] {
      const auto now = std::chrono::steady_clock::now();
      const std::uint64_t value = value_.load(std::memory_order_relaxed);
      if (value == shown_ || now - last_ < std::chrono::milliseconds(100)) return;
      shown_ = value;
      last_ = now;
      call(*callback_, arguments(value));
    };
  }
  void finish(std::uint64_t value, const std::function<py::tuple(std::uint64_t)>& arguments) {
    if (callback_ && shown_ != value) call(*callback_, arguments(value));
  }

 private:
  std::optional<py::function> callback_;
  std::atomic<std::uint64_t> value_{0};
  std::uint64_t shown_ = 0;
  std::chrono::steady_clock::time_point last_;
};

std::unique_ptr<Handle> load(std::shared_ptr<files::ModelFile> file, const LoadOptions& options, std::optional<py::function> progress) {
  Counter counter(std::move(progress));
  std::atomic<std::uint64_t> total{0};
  const auto arguments = [&](std::uint64_t done) { return py::make_tuple(done, std::max(done, total.load())); };
  std::shared_ptr<engine::Model> model;
  interruptible(
      [&](const Cancel& cancel) {
        total = file->size_bytes();
        model = engine::Model::load(file, options, [&](std::uint64_t bytes) { counter.set(bytes); }, cancel);
      },
      counter.poll(arguments));
  counter.finish(total, [](std::uint64_t bytes) { return py::make_tuple(bytes, bytes); });
  return std::make_unique<Handle>(std::move(model));
}

py::dict plan(std::shared_ptr<files::ModelFile> file, const LoadOptions& options) {
  engine::Placement placement;
  interruptible([&](const Cancel&) { placement = engine::plan(file, options); });
  return placement_dict(placement);
}

// ---------------------------------------------------------------- encoders
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

void encode(const Handle& handle, const py::array& ids, const py::array& offsets, const std::optional<py::array>& types, py::array& out,
            bool normalize, std::int64_t token_budget, std::optional<py::function> progress, std::int32_t prompt,
            const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const auto [texts, target, d, norm, none] = encode_call(ids, offsets, types, out, normalize, prompt);
  if (cancel) {
    const WithoutGil released;
    if (token_budget != 0) return engine::encode(m->pooled(), texts, target, d, normalize, token_budget, {}, *cancel);
    return m->pooled_queue().encode(texts, target, d, normalize, *cancel);
  }
  Counter counter(std::move(progress));
  const auto arguments = [](std::uint64_t done) { return py::make_tuple(done); };
  engine::Runtime& runtime = m->pooled();
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

// Small calls, each (ids, offsets, types, out, normalize, prompt), with a Cancel each. Which of them are done: the others failed, and tell
// why when they are asked for alone.
std::vector<bool> encode_several(const Handle& handle, const py::list& calls, const std::vector<std::shared_ptr<Cancel>>& cancels) {
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
    m->pooled_queue().encode(given, stops);
  }
  std::vector<bool> done;
  for (const engine::EncodeCall& call : given) done.push_back(!call.error);
  return done;
}

py::array_t<float> encode_tokens(const Handle& handle, const py::array& ids, const py::array& offsets,
                                 const std::optional<py::array>& types, const std::optional<py::array>& unseen,
                                 const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  engine::Texts texts = texts_of(ids, offsets, types);
  if (unseen) texts.unseen = values<std::int32_t>(*unseen, 1, "unseen");
  engine::Runtime& runtime = m->tokens();
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

py::array_t<float> classify(const Handle& handle, const py::array& ids, const py::array& offsets, const std::optional<py::array>& types,
                            const std::shared_ptr<Cancel>& cancel) {
  const auto m = handle.get();
  const engine::Texts texts = texts_of(ids, offsets, types);
  engine::Runtime& runtime = m->classes();
  const std::int32_t labels = runtime.pipeline.hidden_size();
  py::array_t<float> out({static_cast<py::ssize_t>(texts.offsets.size()) - 1, static_cast<py::ssize_t>(labels)});
  const auto target = writable(out);
  if (cancel) {
    const WithoutGil released;
    m->classes_queue().encode(texts, target, labels, false, *cancel);
  } else {
    handle.compute(texts.ids.size(), [&](const Cancel& stop) { engine::encode(runtime, texts, target, labels, false, 0, {}, stop); });
  }
  return out;
}

py::array_t<float> hidden_states(const Handle& handle, const py::array& ids, const py::array& layers) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids), asked = ids_of(layers);
  py::array_t<float> out({static_cast<py::ssize_t>(asked.size()), static_cast<py::ssize_t>(tokens.size()),
                          static_cast<py::ssize_t>(m->description().config.hidden_size)});
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { m->hidden_states(tokens, asked, target, cancel); });
  return out;
}

py::array_t<float> attentions(const Handle& handle, const py::array& ids, std::int64_t layer) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  const auto& layers = m->description().config.layers;
  require(layer >= 0 && layer < static_cast<std::int64_t>(layers.size()), "layer ", layer, " is not 0 to ", layers.size() - 1);
  const auto n = static_cast<py::ssize_t>(tokens.size()),
             heads = static_cast<py::ssize_t>(layers[static_cast<std::size_t>(layer)].attention.heads);
  py::array_t<float> out({heads, n, n});
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { m->attentions(tokens, static_cast<std::size_t>(layer), target, cancel); });
  return out;
}

// ---------------------------------------------------------------- decoders
py::array_t<float> logits(const Handle& handle, const py::array& ids, bool all_positions) {
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
  interruptible([&](const Cancel& cancel) { engine::logits(runtime, tokens, all_positions, target, cancel); });
  return out;
}

py::array_t<float> score(const Handle& handle, const py::array& ids) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  engine::Runtime& runtime = m->decoder();
  require(!tokens.empty(), "ids is empty; a score needs at least one token");
  py::array_t<float> out(static_cast<py::ssize_t>(tokens.size()) - 1);
  const auto target = writable(out);
  interruptible([&](const Cancel& cancel) { engine::score(runtime, tokens, target, cancel); });
  return out;
}

std::uint64_t save_prefix(const Handle& handle, const py::str& path, const py::array& ids) {
  const auto m = handle.get();
  const auto tokens = ids_of(ids);
  const std::string file = file_name(path);
  std::uint64_t bytes = 0;
  interruptible([&](const Cancel& cancel) { bytes = engine::save_prefix(*m, file, tokens, cancel); });
  return bytes;
}

py::tuple load_prefix(const Handle& handle, const py::str& path) {
  const auto m = handle.get();
  const std::string file = file_name(path);
  engine::LoadedPrefix found;
  interruptible([&](const Cancel& cancel) { found = engine::load_prefix(*m, file, cancel); });
  return py::make_tuple(to_array(found.ids), found.recomputed);
}

// params[key] as T, or `otherwise`; a wrong type is a TypeError that names the key.
template <class T>
T param(const py::dict& params, const char* key, T otherwise) {
  if (!params.contains(key)) return otherwise;
  try {
    return params[key].cast<T>();
  } catch (const py::cast_error&) {
    fail(ErrorKind::wrong_type, key, " is ", repr_of(params[key]), ", which is no number of the right kind or size");
  }
}

engine::GenerateParams generate_params(const engine::Model& model, const py::dict& params) {
  static const auto& known = *new std::vector<std::string>{
      "max_new_tokens",   "temperature",       "top_k",      "top_p", "min_p", "typical_p", "repetition_penalty",
      "presence_penalty", "frequency_penalty", "logit_bias", "seed",  "n",     "eos_ids",   "logprobs",
      "read_ahead",       "priority",  "lookup",            "draft",      "guesses", "foreseen", "always", "replay",  "min_new_tokens",
      "stop_ids",         "bad_words",         "logits_processor",  "dry_multiplier",
      "dry_base",         "dry_allowed_length", "dry_range", "dry_breakers", "top_n_sigma", "xtc_probability", "xtc_threshold",
      "mirostat_tau",     "mirostat_eta",    "grammar"};
  for (const auto& [key, value] : params) {
    if (std::ranges::find(known, text_of(key)) == known.end())
      fail(ErrorKind::wrong_type, "unknown parameter ", text_of(key));
  }
  engine::GenerateParams p;
  p.max_new_tokens = param(params, "max_new_tokens", p.max_new_tokens);
  p.min_new_tokens = param(params, "min_new_tokens", p.min_new_tokens);
  p.stop_ids = param(params, "stop_ids", p.stop_ids);
  p.shows_logits = params.contains("logits_processor");
  p.bad_words = param(params, "bad_words", p.bad_words);
  if (params.contains("grammar")) p.filters.push_back(params["grammar"].cast<const GrammarHandle&>().grammar->filter());
  p.n = param(params, "n", p.n);
  p.eos_ids = param(params, "eos_ids", p.eos_ids);
  p.read_ahead = param(params, "read_ahead", p.read_ahead);
  p.priority = param(params, "priority", p.priority);
  engine::Speculation& guesses = p.speculation;
  guesses.matching = param(params, "lookup", guesses.matching);
  guesses.most = param(params, "guesses", guesses.most);
  guesses.foreseen = param(params, "foreseen", guesses.foreseen);
  guesses.always = param(params, "always", guesses.always);
  guesses.replay = param(params, "replay", guesses.replay);
  if (params.contains("draft")) guesses.drafter = model.drafter(params["draft"].cast<const Handle&>().get());
  engine::SamplingParams& s = p.sampling;
  s.temperature = param(params, "temperature", s.temperature);
  s.top_k = param(params, "top_k", s.top_k);
  s.top_p = param(params, "top_p", s.top_p);
  s.min_p = param(params, "min_p", s.min_p);
  s.typical_p = param(params, "typical_p", s.typical_p);
  s.repetition_penalty = param(params, "repetition_penalty", s.repetition_penalty);
  s.presence_penalty = param(params, "presence_penalty", s.presence_penalty);
  s.frequency_penalty = param(params, "frequency_penalty", s.frequency_penalty);
  s.dry_multiplier = param(params, "dry_multiplier", s.dry_multiplier);
  s.dry_base = param(params, "dry_base", s.dry_base);
  s.dry_allowed = param(params, "dry_allowed_length", s.dry_allowed);
  s.dry_range = param(params, "dry_range", s.dry_range);
  s.dry_breakers = param(params, "dry_breakers", s.dry_breakers);
  std::ranges::sort(s.dry_breakers);
  s.top_n_sigma = param(params, "top_n_sigma", s.top_n_sigma);
  s.xtc_probability = param(params, "xtc_probability", s.xtc_probability);
  s.xtc_threshold = param(params, "xtc_threshold", s.xtc_threshold);
  s.mirostat_tau = param(params, "mirostat_tau", s.mirostat_tau);
  s.mirostat_eta = param(params, "mirostat_eta", s.mirostat_eta);
  s.logprobs = param(params, "logprobs", s.logprobs);
  if (params.contains("seed")) s.seed = param<std::uint64_t>(params, "seed", 0);
  for (const auto& [id, bias] : param(params, "logit_bias", std::map<std::int32_t, float>{})) s.logit_bias.emplace_back(id, bias);
  return p;
}

// What one sequence has to say, as a dict.
py::list news_list(const std::vector<engine::News>& news, bool logprobs) {
  py::list out;
  for (const engine::News& n : news) {
    py::dict item("sequence"_a = n.sequence, "ids"_a = to_array(n.ids), "finish_reason"_a = py::none());
    if (n.finish == engine::Finish::eos) item["finish_reason"] = "eos";
    if (n.finish == engine::Finish::length) item["finish_reason"] = "length";
    if (n.finish == engine::Finish::grammar) item["finish_reason"] = "grammar";
    if (logprobs) {
      item["logprobs"] = to_array(n.logprobs);
      item["top_ids"] = to_array(n.top_ids, n.top_count);
      item["top_logprobs"] = to_array(n.top_logprobs, n.top_count);
    }
    out.append(std::move(item));
  }
  return out;
}

class RequestHandle {
 public:
  // params: a dict, or a list with one for each prompt.
  RequestHandle(const Handle& handle, const py::sequence& prompts, const py::object& params) : model_(handle.get()) {
    std::vector<std::vector<std::int32_t>> ids;
    for (const auto& prompt : prompts) {
      if (!py::isinstance<py::array>(prompt)) fail(ErrorKind::wrong_type, "prompts must be arrays of int32");
      const auto tokens = ids_of(py::reinterpret_borrow<py::array>(prompt));
      ids.emplace_back(tokens.begin(), tokens.end());
    }
    std::vector<engine::GenerateParams> all;
    for (const auto& each : py::isinstance<py::dict>(params) ? py::list(py::make_tuple(params)) : py::list(params)) {
      if (!py::isinstance<py::dict>(each)) fail(ErrorKind::wrong_type, "params must be a dict, or a list of dicts");
      all.push_back(generate_params(*model_, py::reinterpret_borrow<py::dict>(each)));
      logprobs_ = logprobs_ || all.back().sampling.logprobs >= 0;
      const bool processes = all.back().shows_logits;
      processors_.push_back(processes ? py::reinterpret_borrow<py::dict>(each)["logits_processor"].cast<py::object>() : py::object());
    }
    const WithoutGil released;
    request_ = model_->scheduler().request(ids, all);
  }
  ~RequestHandle() {
    const WithoutGil released;
    request_.reset();
    model_.reset();
  }
  RequestHandle(const RequestHandle&) = delete;
  RequestHandle& operator=(const RequestHandle&) = delete;

  engine::Request& get() const { return *request_; }

  py::list advance(std::int32_t steps, double max_ms) {
    wait_interruptibly(max_ms, [&](double ms) { return request_->wait(steps, ms); });
    if (std::ranges::any_of(processors_, [](const py::object& each) { return static_cast<bool>(each); })) process_logits();
    const std::vector<engine::News> news = [&] {
      const WithoutGil released;
      return request_->take();
    }();
    return news_list(news, logprobs_);
  }

  py::dict timings() const {
    const auto t = [&] {
      const WithoutGil released;
      return request_->timings();
    }();
    return py::dict("prefill_tokens"_a = static_cast<double>(t.prefill_tokens), "prefill_seconds"_a = t.prefill_seconds,
                    "decode_tokens"_a = static_cast<double>(t.decode_tokens), "decode_seconds"_a = t.decode_seconds,
                    "drafted_tokens"_a = static_cast<double>(t.drafted_tokens),
                    "accepted_tokens"_a = static_cast<double>(t.accepted_tokens));
  }

 private:
  // Calls the functions that change logits, in this thread: what they raise is this call's, and nobody else waits for them.
  void process_logits() {
    const std::vector<engine::Request::Shown> shown = [&] {
      const WithoutGil released;
      return request_->shown();
    }();
    const auto per_prompt = static_cast<std::size_t>(request_->sequences()) / request_->prompt_tokens().size();
    for (const auto& [sequence, ids, logits] : shown) {
      const std::size_t prompt = static_cast<std::size_t>(sequence) / per_prompt;
      py::array_t<float> row = to_array(logits);
      const py::object result = call(processors_[processors_.size() == 1 ? 0 : prompt], py::make_tuple(to_array(ids), row));
      if (!result.is_none())
        fail(ErrorKind::wrong_type, "logits_processor gave back ", repr_of(result).substr(0, 100),
             "; it must change the row of logits in place and return None");
      const std::span<const float> changed{row.data(), static_cast<std::size_t>(row.size())};
      const WithoutGil released;
      request_->answer(sequence, changed);
    }
  }

  std::vector<py::object> processors_;  // of each set of parameters; null: none
  std::shared_ptr<engine::Model> model_;
  std::shared_ptr<engine::Request> request_;
  bool logprobs_ = false;
};

// The news of a model's started requests. Holds the model: it is let go when nothing is started any more.
class Pump {
 public:
  explicit Pump(const Handle& handle) : model_(handle.get()) { model_->scheduler(); }
  ~Pump() {
    const WithoutGil released;
    model_.reset();
  }
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  py::list wait(double max_ms) {
    std::vector<engine::RequestNews> all;
    {
      const WithoutGil released;
      all = model_->scheduler().pump(max_ms);
    }
    py::list out;
    for (const engine::RequestNews& each : all) {
      const bool logprobs = std::ranges::any_of(each.news, [](const engine::News& n) { return !n.logprobs.empty(); });
      out.append(py::make_tuple(each.tag, news_list(each.news, logprobs), each.ended));
    }
    return out;
  }
  void wake() {
    const WithoutGil released;
    model_->scheduler().wake_pump();
  }

 private:
  std::shared_ptr<engine::Model> model_;
};

py::dict stats(const Handle& handle) {
  const auto m = handle.get();
  engine::SchedulerStats s;
  engine::PagePool::Stats pages;
  {
    const WithoutGil released;
    s = m->scheduler().stats();
    pages = m->decoder().pages->stats();
  }
  return py::dict("running"_a = s.running, "waiting"_a = s.waiting, "lagging"_a = s.lagging, "step_rows"_a = s.rows, "steps"_a = s.steps,
                  "prompt_tokens"_a = s.prompt_tokens, "decoded_tokens"_a = s.decoded_tokens, "preempted"_a = s.preempted,
                  "busy_seconds"_a = s.busy_seconds, "pages_in_use"_a = pages.pages_in_use, "pages_cached"_a = pages.pages_cached,
                  "pages_budget"_a = pages.pages_budget);
}

py::dict set_limits(const Handle& handle, std::optional<std::int32_t> running, std::optional<std::int32_t> waiting,
                    std::optional<double> step_seconds) {
  const auto m = handle.get();
  engine::Limits limits;
  {
    const WithoutGil released;
    engine::Scheduler& scheduler = m->scheduler();
    limits = scheduler.limits();
    limits = {running.value_or(limits.running), waiting.value_or(limits.waiting), step_seconds.value_or(limits.step_seconds)};
    scheduler.set_limits(limits);
  }
  return py::dict("running"_a = limits.running, "waiting"_a = limits.waiting, "step_seconds"_a = limits.step_seconds);
}

}  // namespace

void bind_models(py::module_& module) {
  py::class_<LoadOptions>(module, "LoadOptions")
      .def(py::init(&make_options), py::kw_only(), "device"_a = "auto", "gpu_layers"_a = py::none(), "quantize"_a = py::none(),
           "n_ctx"_a = py::none(), "kv_dtype"_a = "f16", "kv_budget"_a = py::none(), "compute"_a = "auto", "threads"_a = py::none(),
           "pooling"_a = std::vector<std::string>{}, "modules"_a = std::vector<py::dict>{}, "score_ids"_a = std::vector<std::int32_t>{},
           "task"_a = py::none(), "lora"_a = std::vector<py::dict>{});
  py::class_<Cancel, std::shared_ptr<Cancel>>(module, "Cancel").def(py::init<>()).def("request", &Cancel::request);
  py::class_<Handle> handle(module, "Model");  // classes before the functions that return them, whose docstrings name them
  py::class_<RequestHandle> request(module, "Request");
  py::class_<Pump>(module, "Pump")
      .def(py::init<const Handle&>(), "model"_a)
      .def("wait", &Pump::wait, "max_ms"_a)
      .def("wake", &Pump::wake);
  handle.def_property_readonly("info", &model_info)
      .def("placement", [](const Handle& handle) { return placement_dict(handle.get()->placement()); })
      .def("memory", &memory)
      .def("cache_stats", &cache_stats)
      .def("stats", &stats)
      .def("set_limits", &set_limits, "running"_a = py::none(), "waiting"_a = py::none(), "step_seconds"_a = py::none())
      .def("encode", &encode, "ids"_a, "offsets"_a, "types"_a.none(true), "out"_a, "normalize"_a, "token_budget"_a,
           "progress"_a = py::none(), "prompt"_a = 0, "cancel"_a = py::none())
      .def("encode_several", &encode_several, "calls"_a, "cancels"_a)
      .def("encode_tokens", &encode_tokens, "ids"_a, "offsets"_a, "types"_a.none(true), "unseen"_a = py::none(),
           "cancel"_a = py::none())
      .def("classify", &classify, "ids"_a, "offsets"_a, "types"_a.none(true), "cancel"_a = py::none())
      .def("hidden_states", &hidden_states, "ids"_a, "layers"_a)
      .def("attentions", &attentions, "ids"_a, "layer"_a)
      .def("logits", &logits, "ids"_a, "all_positions"_a)
      .def("score", &score, "ids"_a)
      .def("save_prefix", &save_prefix, "path"_a, "ids"_a)
      .def("load_prefix", &load_prefix, "path"_a)
      .def(
          "request",
          [](const Handle& handle, const py::sequence& prompts, const py::object& params) {
            return std::make_unique<RequestHandle>(handle, prompts, params);
          },
          "prompts"_a, "params"_a)
      .def("close", &Handle::close);

  request
      .def_property_readonly("sequences", [](const RequestHandle& g) { return g.get().sequences(); })
      .def_property_readonly("prompt_tokens", [](const RequestHandle& g) { return g.get().prompt_tokens(); })
      .def_property_readonly("reused_tokens", [](const RequestHandle& g) {
        const WithoutGil released;
        return g.get().reused_tokens();
      }, py::return_value_policy::move)
      .def_property_readonly("seeds", [](const RequestHandle& g) { return g.get().seeds(); })
      .def_property_readonly("done", [](const RequestHandle& g) {
        const WithoutGil released;
        return g.get().done();
      }, py::return_value_policy::move)
      .def("advance", &RequestHandle::advance, "steps"_a, "max_ms"_a)
      .def("start", [](const RequestHandle& g, std::uint64_t tag, std::int32_t steps) {
        const WithoutGil released;
        g.get().start(tag, steps);
      }, "tag"_a, "steps"_a)
      .def("hold", [](const RequestHandle& g, bool held) {
        const WithoutGil released;
        g.get().hold(held);
      }, "held"_a)
      .def("finish", [](const RequestHandle& g, std::int32_t sequence) {
        const WithoutGil released;
        g.get().finish(sequence);
      }, "sequence"_a)
      .def("timings", &RequestHandle::timings)
      .def("close", [](const RequestHandle& g) {
        const WithoutGil released;
        g.get().close();
      });
  module.def("plan", &plan, "file"_a, "options"_a);
  module.def("load", &load, "file"_a, "options"_a, "progress"_a = py::none());
}

}  // namespace pumice::bindings
