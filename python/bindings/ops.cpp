#include "ops.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/program.h"
#include "engine/devices.h"
#include "engine/diagnostics.h"
#include "gil.h"
#include "interruptible.h"
#include "options.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

// ---------------------------------------------------------------- conversion of dicts to operations
template <class T>
T field(const py::dict& d, const char* key, T otherwise) {
  return d.contains(key) ? d[key].cast<T>() : otherwise;
}
template <class T>
T field(const py::dict& d, const char* key) {
  if (!d.contains(key)) fail(ErrorKind::invalid_argument, "an operation lacks its field ", key);
  return d[key].cast<T>();
}

View view(const py::dict& d, const char* key, bool required = true) {
  if (!d.contains(key) || d[key].is_none()) {
    if (required) fail(ErrorKind::invalid_argument, "an operation lacks its view ", key);
    return {};
  }
  const auto [slot, col, width] = d[key].cast<std::tuple<std::int32_t, std::int32_t, std::int32_t>>();
  return {slot, col, width};
}

template <class Id>
Id id(const py::dict& d, const char* key) {
  return static_cast<Id>(field<std::int32_t>(d, key, -1));
}

// Returns the enum value with the name d[key], or `otherwise` if d has no such key. `names` has the names of the enum's values in their
// order.
template <class Enum, class Names>
Enum one_of(const py::dict& d, const char* key, const Names& names, Enum otherwise) {
  const auto name = field<std::string>(d, key, "");
  if (name.empty()) return otherwise;
  const auto known = std::find(std::begin(names), std::end(names), name);
  if (known == std::end(names)) fail(ErrorKind::invalid_argument, key, "=\"", name, "\" is not known");
  return static_cast<Enum>(known - std::begin(names));
}

Activation activation(const py::dict& d) { return one_of(d, "activation", kActivations, Activation::none); }

// Each overload of read() fills one kind of operation from a dict. If an operation had no overload, read_op() would not compile.
void read(Embed& op, const py::dict& d) {
  op = {.out = view(d, "out"),
        .tokens = id<MatrixId>(d, "tokens"),
        .positions = id<MatrixId>(d, "positions"),
        .types = id<MatrixId>(d, "types"),
        .scale = field<float>(d, "scale", 1)};
}
void read(Norm& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .out = view(d, "out"),
        .add = view(d, "add", false),
        .weight = id<VectorId>(d, "weight"),
        .bias = id<VectorId>(d, "bias"),
        .kind = one_of(d, "kind", kNormKinds, NormKind::rms),
        .group = field<std::int32_t>(d, "group", 0),
        .eps = field<float>(d, "eps", 1e-5f),
        .per_column = field<bool>(d, "per_column", false)};
}
void read(Linear& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .out = view(d, "out"),
        .parts = {},
        .activation = activation(d),
        .residual = view(d, "residual", false),
        .precise = field<bool>(d, "precise", false),
        .scale = field<float>(d, "scale", 1),
        .softcap = field<float>(d, "softcap", 0),
        .alpha_p = field<float>(d, "alpha_p", 0),
        .alpha_n = field<float>(d, "alpha_n", 0)};
  for (const auto& part : field<std::vector<py::dict>>(d, "parts"))
    op.parts.push_back({id<MatrixId>(part, "weight"), id<VectorId>(part, "bias")});
}
void read(GatedLinear& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .out = view(d, "out"),
        .gate = id<MatrixId>(d, "gate"),
        .up = id<MatrixId>(d, "up"),
        .gate_bias = id<VectorId>(d, "gate_bias"),
        .up_bias = id<VectorId>(d, "up_bias"),
        .activation = activation(d)};
}
void read(HeadLinear& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .out = view(d, "out"),
        .in_step = field<std::int32_t>(d, "in_step"),
        .out_step = field<std::int32_t>(d, "out_step"),
        .weight = id<MatrixId>(d, "weight")};
}
void read(Route& op, const py::dict& d) {
  op = {.logits = view(d, "logits"),
        .out = view(d, "out"),
        .chosen = field<std::int32_t>(d, "chosen"),
        .groups = field<std::int32_t>(d, "groups", 1),
        .kept = field<std::int32_t>(d, "kept", 1),
        .score = one_of(d, "score", kRouteScores, RouteScore::softmax),
        .bias = id<VectorId>(d, "bias"),
        .scales = id<VectorId>(d, "scales"),
        .normalised = field<bool>(d, "normalised", true),
        .floor = field<float>(d, "floor", 0),
        .scale = field<float>(d, "scale", 1)};
}
void read(Experts& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .route = view(d, "route"),
        .out = view(d, "out"),
        .residual = view(d, "residual", false),
        .gate = id<MatrixId>(d, "gate"),
        .up = id<MatrixId>(d, "up"),
        .down = id<MatrixId>(d, "down"),
        .gate_bias = id<VectorId>(d, "gate_bias"),
        .up_bias = id<VectorId>(d, "up_bias"),
        .down_bias = id<VectorId>(d, "down_bias"),
        .activation = activation(d),
        .limit = field<float>(d, "limit", 0),
        .shift = field<float>(d, "shift", 0),
        .scale = field<float>(d, "scale", 1),
        .weighs_input = field<bool>(d, "weighs_input", false)};
}
void read(Multiply& op, const py::dict& d) {
  op = {.a = view(d, "a"),
        .b = view(d, "b", false),
        .out = view(d, "out"),
        .activation = activation(d),
        .scale = field<float>(d, "scale", 1)};
}
void read(Rope& op, const py::dict& d) {
  op = {.x = view(d, "x"),
        .head_dim = field<std::int32_t>(d, "head_dim"),
        .table = {.inv_freq = field<std::vector<float>>(d, "inv_freq"),
                  .interleaved = field<bool>(d, "interleaved", false),
                  .magnitude = field<float>(d, "magnitude", 1),
                  .original = field<std::int64_t>(d, "original", 0),
                  .long_inv_freq = field<std::vector<float>>(d, "long_inv_freq", {}),
                  .base = field<float>(d, "base", 0),
                  .growth = field<float>(d, "growth", 0)},
        .temperature = field<float>(d, "temperature", 0),
        .temperature_length = field<std::int32_t>(d, "temperature_length", 0),
        .temperature_offset = field<std::int32_t>(d, "temperature_offset", 0)};
}
void read(Store& op, const py::dict& d) { op = {.k = view(d, "k"), .v = view(d, "v"), .cache = id<CacheId>(d, "cache")}; }
void read(Attend& op, const py::dict& d) {
  op = {.q = view(d, "q"),
        .out = view(d, "out"),
        .cache = id<CacheId>(d, "cache"),
        .k = view(d, "k", false),
        .v = view(d, "v", false),
        .key_dim = field<std::int32_t>(d, "key_dim"),
        .value_dim = field<std::int32_t>(d, "value_dim"),
        .kv_heads = field<std::int32_t>(d, "kv_heads"),
        .causal = field<bool>(d, "causal", false),
        .window = field<std::int32_t>(d, "window", 0),
        .chunk = field<std::int32_t>(d, "chunk", 0),
        .scale = field<float>(d, "scale", 1),
        .softcap = field<float>(d, "softcap", 0),
        .bias = id<VectorId>(d, "bias"),
        .reach = field<std::int32_t>(d, "reach", 0),
        .slopes = id<VectorId>(d, "slopes"),
        .sinks = id<VectorId>(d, "sinks"),
        .by_query = view(d, "by_query", false),
        .by_key = view(d, "by_key", false),
        .places = id<VectorId>(d, "places")};
}
void read(Conv& op, const py::dict& d) {
  op = {.in = view(d, "in"),
        .out = view(d, "out"),
        .taps = id<VectorId>(d, "taps"),
        .bias = id<VectorId>(d, "bias"),
        .width = field<std::int32_t>(d, "width"),
        .activation = activation(d),
        .centred = field<bool>(d, "centred", false),
        .state = id<StateId>(d, "state")};
}
void read(Scan& op, const py::dict& d) {
  op = {.q = view(d, "q"),
        .k = view(d, "k"),
        .v = view(d, "v"),
        .step = view(d, "step"),
        .beta = view(d, "beta", false),
        .out = view(d, "out"),
        .step_bias = id<VectorId>(d, "step_bias"),
        .rate = id<VectorId>(d, "rate"),
        .skip = id<VectorId>(d, "skip"),
        .key_heads = field<std::int32_t>(d, "key_heads"),
        .key_dim = field<std::int32_t>(d, "key_dim"),
        .value_dim = field<std::int32_t>(d, "value_dim"),
        .rule = one_of(d, "rule", kScanRules, ScanRule::delta),
        .tiled = field<bool>(d, "tiled", false),
        .floor = field<float>(d, "floor", 0),
        .strength = field<float>(d, "strength", 1),
        .state = id<StateId>(d, "state")};
}
void read(Select& op, const py::dict& d) { op = {.in = view(d, "in"), .out = view(d, "out")}; }
void read(Pool& op, const py::dict& d) {
  op = {.in = view(d, "in"), .out = view(d, "out"), .kind = one_of(d, "kind", kPoolKinds, PoolKind::mean)};
}
void read(LogProb& op, const py::dict& d) { op = {.logits = view(d, "logits"), .out = view(d, "out")}; }
void read(Top& op, const py::dict& d) {
  op = {
      .logits = view(d, "logits"), .out = view(d, "out"), .k = field<std::int32_t>(d, "k"), .reported = field<std::int32_t>(d, "reported")};
}

// Returns the operation with this name (in snake case), filled from the dict.
template <std::size_t i = 0>
Op read_op(const std::string& name, const py::dict& d) {
  if constexpr (i == std::variant_size_v<Op>) {
    fail(ErrorKind::invalid_argument, "there is no operation \"", name, "\"");
  } else {
    std::variant_alternative_t<i, Op> op{};
    if (name != snake_case(op.kName)) return read_op<i + 1>(name, d);
    read(op, d);
    return op;
  }
}

// ---------------------------------------------------------------- runner
using RaggedSegment = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::vector<std::int32_t>, std::int32_t, std::int32_t,
                                 std::int32_t, std::int32_t, std::int32_t, std::vector<std::pair<std::int32_t, std::int32_t>>>;

class Runner {
 public:
  Runner(const py::dict& program, const std::vector<std::tuple<std::string, std::int64_t, std::int64_t, std::int32_t, py::bytes>>& matrices,
         const std::vector<std::vector<float>>& vectors, int threads, const std::string& compute, const std::string& kv_dtype,
         std::int32_t pages, std::int32_t states, const std::string& device, bool may_round) {
    Program p{.name = "test"};
    for (const auto& op : field<std::vector<py::dict>>(program, "ops")) p.ops.push_back(read_op(field<std::string>(op, "op"), op));
    for (const auto& [rows, width] : field<std::vector<std::pair<std::string, std::int32_t>>>(program, "slots")) {
      require(rows == "tokens" || rows == "segments" || rows == "selected", "rows \"", rows, "\" of a slot are not known");
      p.slots.push_back({rows == "tokens" ? Rows::tokens : rows == "segments" ? Rows::segments : Rows::selected, width});
    }
    for (const auto& [heads, key_dim, value_dim] :
         field<std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>>(program, "caches", {})) {
      p.caches.push_back({heads, key_dim, value_dim});
    }
    for (const auto& [matrices_of_state, rows, cols] :
         field<std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>>>(program, "states", {})) {
      p.states.push_back({matrices_of_state, rows, cols});
    }
    p.input = field<std::int32_t>(program, "input", -1);
    p.output = field<std::int32_t>(program, "output");
    if (p.output < 0 || p.output >= static_cast<std::int32_t>(p.slots.size())) fail(ErrorKind::invalid_argument, "output is no slot");
    output_ = p.slots[static_cast<std::size_t>(p.output)];
    Weights weights;
    for (const auto& [format, rows, cols, experts, bytes] : matrices) {
      const auto known = format_from_name(format);
      require(known.has_value(), "format ", format, " is not known");
      const auto data = std::make_shared<std::string>(bytes);
      const std::int64_t row = row_bytes(*known, cols);
      require(rows > 0 && cols > 0 && static_cast<std::int64_t>(data->size()) == rows * row, format, ": ", data->size(), " bytes for ",
              rows, " x ", cols);
      weights.matrices.push_back(
          {.name = str("matrix ", weights.matrices.size()),
           .format = *known,
           .rows = rows,
           .cols = cols,
           .read = [data, row](std::int64_t first, std::int64_t count,
                               std::uint8_t* out) { std::memcpy(out, data->data() + first * row, static_cast<std::size_t>(count * row)); },
           .rounding = may_round && compute_mode(compute) == Compute::automatic ? Rounding::floats : Rounding::none,
           .experts = experts});
    }
    for (const auto& values : vectors) weights.vectors.push_back({.name = str("vector ", weights.vectors.size()), .values = values});
    interruptible([&](const Cancel& cancel) {
      const engine::Devices devices = engine::open_devices({.device = device, .threads = threads});
      backend_ = devices.gpus.empty() ? devices.cpu : devices.gpus.front();
      caches_ = backend_->make_caches(p, kv_format(kv_dtype));
      if (pages > 0) caches_->reserve(pages);
      if (states > 0) caches_->reserve_states(states);
      executable_ = backend_->prepare(std::move(p), backend_->pack(weights, {}, {}, cancel), compute_mode(compute), cancel);
      workspace_ = backend_->make_workspace(Crew::team);
    });
  }

  // Runs the program on one batch. Each element of `segments` is (first, rows, past, pages, length, prompt, unseen, ahead, state, saves),
  // the members of Segment. `saves` is a list of pairs (rows, state).
  py::array_t<float> run(std::int32_t rows, const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& types,
                         const std::vector<RaggedSegment>& segments, const std::vector<std::int32_t>& selected,
                         const std::optional<py::array_t<float, py::array::c_style | py::array::forcecast>>& in,
                         const std::vector<std::int32_t>& reported, const std::vector<std::int32_t>& reported_first,
                         const std::vector<std::uint32_t>& allowed, const std::vector<std::int32_t>& allowed_first) {
    std::vector<Segment> parts;
    std::vector<std::vector<SavedState>> saved;
    for (const auto& [first, count, past, pages, length, prompt, unseen, ahead, state, saves] : segments) {
      std::vector<SavedState>& of_segment = saved.emplace_back();
      for (const auto& [after, number] : saves) of_segment.push_back({after, number});
      parts.push_back({first, count, past, pages, length, prompt, unseen, state, {}, ahead});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].saves = saved[i];
    const Batch batch{.rows = rows,
                      .ids = ids,
                      .types = types,
                      .segments = parts,
                      .selected = selected,
                      .reported = reported,
                      .reported_first = reported_first,
                      .allowed = allowed,
                      .allowed_first = allowed_first};
    const std::size_t out_rows = output_.rows == Rows::tokens     ? static_cast<std::size_t>(rows)
                                 : output_.rows == Rows::segments ? parts.size()
                                                                  : selected.size();
    py::array_t<float> out({static_cast<py::ssize_t>(out_rows), static_cast<py::ssize_t>(output_.width)});
    Io io{.in = {}, .out = {out.mutable_data(), static_cast<std::size_t>(out.size())}};
    if (in) io.in = {in->data(), static_cast<std::size_t>(in->size())};
    interruptible([&](const Cancel& cancel) { executable_->run(*workspace_, caches_.get(), batch, io, cancel); });
    return out;
  }

 private:
  SlotShape output_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<CacheStore> caches_;
  std::shared_ptr<const Executable> executable_;
  std::unique_ptr<Workspace> workspace_;
};

py::array_t<float> unpack_bytes(const std::string& format, const py::bytes& packed) {
  const auto known = format_from_name(format);
  require(known.has_value(), "format ", format, " is not known");
  const std::string_view bytes = packed;
  const auto blocks = static_cast<std::int64_t>(bytes.size()) / info(*known).block_bytes;
  py::array_t<float> out(blocks * info(*known).block);
  float* const to = out.mutable_data();
  const auto count = static_cast<std::int64_t>(out.size());
  const WithoutGil released;
  unpack(*known, reinterpret_cast<const std::uint8_t*>(bytes.data()), count, to);
  return out;
}

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Packs float weights to a format. If `columns` is given, the weights are rows with one weight per element of `columns`, and the squared
// error of a weight in column c counts columns[c] times when codes are chosen (pack_rows()).
py::bytes pack_floats(const std::string& format, const Floats& weights, const std::optional<Floats>& columns) {
  const auto known = format_from_name(format);
  require(known.has_value(), "format ", format, " is not known");
  require(weights.size() % info(*known).block == 0, weights.size(), " weights are no whole number of blocks of ", info(*known).block);
  const auto count = static_cast<std::int64_t>(weights.size()), cols = columns ? static_cast<std::int64_t>(columns->size()) : 0;
  require(!columns || (cols > 0 && count % cols == 0), count, " weights are no rows of ", cols, " columns");
  std::string packed(static_cast<std::size_t>(row_bytes(*known, count)), '\0');
  {
    const float *const from = weights.data(), *const counted = columns ? columns->data() : nullptr;
    auto* const to = reinterpret_cast<std::uint8_t*>(packed.data());
    const WithoutGil released;
    if (counted) {
      pack_rows(*known, from, count / cols, {counted, static_cast<std::size_t>(cols)}, to);
    } else {
      pack(*known, from, count, to);
    }
  }
  return packed;
}

std::int64_t bytes_of_row(const std::string& format, std::int64_t cols) {
  const auto known = format_from_name(format);
  require(known.has_value(), "format ", format, " is not known");
  require(cols > 0 && cols % info(*known).block == 0, cols, " weights are no whole number of blocks of ", info(*known).block);
  return row_bytes(*known, cols);
}

}  // namespace

void bind_ops(py::module_& module) {
  auto ops = module.def_submodule("ops", "Programs of any operations, and weight formats, on numpy arrays; private.");
  py::class_<Runner>(ops, "Runner")
      .def(py::init<const py::dict&, const std::vector<std::tuple<std::string, std::int64_t, std::int64_t, std::int32_t, py::bytes>>&,
                    const std::vector<std::vector<float>>&, int, const std::string&, const std::string&, std::int32_t, std::int32_t,
                    const std::string&, bool>(),
           "program"_a, "matrices"_a, "vectors"_a, "threads"_a = 0, "compute"_a = "auto", "kv_dtype"_a = "f16", "pages"_a = 0,
           "states"_a = 0, "device"_a = "cpu", "may_round"_a = false)
      .def("run", &Runner::run, "rows"_a, "ids"_a = std::vector<std::int32_t>{}, "types"_a = std::vector<std::int32_t>{},
           "segments"_a = py::list(), "selected"_a = std::vector<std::int32_t>{}, "input"_a = py::none(),
           "reported"_a = std::vector<std::int32_t>{}, "reported_first"_a = std::vector<std::int32_t>{},
           "allowed"_a = std::vector<std::uint32_t>{}, "allowed_first"_a = std::vector<std::int32_t>{});
  ops.def("names", &op_names);
  ops.def("scan_rules", [] { return std::vector<std::string>(std::begin(kScanRules), std::end(kScanRules)); });
  ops.def("activations", [] { return std::vector<std::string>(std::begin(kActivations), std::end(kActivations)); });
  ops.def("unpack", &unpack_bytes, "format"_a, "packed"_a);
  ops.def("pack", &pack_floats, "format"_a, "weights"_a, "columns"_a = py::none());
  ops.def("row_bytes", &bytes_of_row, "format"_a, "cols"_a);
  ops.def("vulkan_messages", &engine::vulkan_messages);
}

}  // namespace pumice::bindings
