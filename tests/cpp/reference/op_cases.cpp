#include "reference/op_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <tuple>

#include "cases.h"
#include "core/checked.h"
#include "core/program_check.h"

namespace pumice::cases {

namespace {

using nlohmann::json;

// Returns the enum value with this name. `names` lists the names in the order of the values.
template <class Enum, class Names>
Enum named(const std::string& name, const Names& names) {
  const auto known = std::find(std::begin(names), std::end(names), name);
  require(known != std::end(names), "op_cases.json: unknown name ", name);
  return static_cast<Enum>(known - std::begin(names));
}
Format format_named(const std::string& name) {
  const auto format = format_from_name(name);
  require(format.has_value(), "op_cases.json: unknown format ", name);
  return *format;
}

// A half float in a block of a quantized format: its byte offset, and the factor from which random_weights() computes its value. The table
// must be equal to "halves" in op_cases.json, which explains the factors; the constructor of OpCases compares both.
struct Half {
  int offset;
  double factor;
};
std::vector<Half> halves(Format format) {
  switch (format) {
    case Format::F32:
    case Format::F16:
    case Format::BF16:
    case Format::F8_E4M3:
    case Format::NVFP4_E:
    case Format::MXFP4:
      return {};
    case Format::A4:
      return {{0, 0.153}};
    case Format::Q4_0:
      return {{0, 0.217}};
    case Format::Q4_1:
      return {{0, 0.217}, {2, -1.6275}};
    case Format::Q5_0:
      return {{0, 0.108}};
    case Format::Q5_1:
      return {{0, 0.108}, {2, -1.674}};
    case Format::Q8_0:
      return {{0, 0.0135}};
    case Format::Q2_K:
      return {{80, 0.072}, {82, 0.108}};
    case Format::Q3_K:
      return {{108, 0.0235}};
    case Format::Q4_K:
      return {{0, 0.0039}, {2, 0.0292}};
    case Format::Q5_K:
      return {{0, 0.0019}, {2, 0.0295}};
    case Format::Q6_K:
      return {{208, 0.00073}};
    case Format::IQ4_NL:
      return {{0, 0.0143}};
    case Format::IQ4_XS:
      return {{0, 0.00077}};
    case Format::IQ1_E:
      return {{0, 0.0757}};
    case Format::IQ2_E:
      return {{0, 0.0172}};
    case Format::IQ3_XXS_E:
      return {{0, 0.0058}};
    case Format::IQ3_S_E:
      return {{0, 0.0059}};
  }
  fail(ErrorKind::invalid_argument, "format ", static_cast<int>(format));
}

std::vector<std::uint8_t> random_weights(Format format, std::int64_t rows, std::int64_t cols, std::int64_t fan_in, std::uint64_t seed) {
  const FormatInfo& f = info(format);
  require(cols % f.block == 0, "op_cases.json: ", cols, " columns are not whole blocks of ", f.name);
  Random random(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * row_bytes(format, cols)));
  const double fan = 1 / std::sqrt(static_cast<double>(fan_in));
  if (f.block == 1) {
    const auto values = random.normals(rows * cols, static_cast<float>(fan));
    pack(format, values.data(), rows * cols, bytes.data());
    return bytes;
  }
  const std::vector<Half> scales = halves(format);
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(f.block_bytes)) {
    for (std::int64_t i = 0; i < f.block_bytes; i += 8) {
      const std::uint64_t bits = random.bits();
      std::memcpy(bytes.data() + at + i, &bits, static_cast<std::size_t>(std::min<std::int64_t>(8, f.block_bytes - i)));
    }
    const double s = (0.5 + random.uniform()) * fan;
    for (const Half& h : scales) {
      const std::uint16_t half = f32_to_f16(static_cast<float>(h.factor * s));
      std::memcpy(bytes.data() + at + h.offset, &half, 2);
    }
    if (format == Format::NVFP4_E) {
      const auto scale = static_cast<float>(0.171 * s);
      std::memcpy(bytes.data() + at, &scale, 4);
      std::memcpy(bytes.data() + at + 4, &scale, 4);
    }
    if (format == Format::F8_E4M3) {
      const auto scale = static_cast<float>(0.0093 * s);
      std::memcpy(bytes.data() + at, &scale, 4);
      for (std::size_t i = at + 4; i < at + 132; ++i) bytes[i] ^= (bytes[i] & 127) == 127;  // NaN
    }
    if (format == Format::MXFP4) {
      bytes[at] =
          static_cast<std::uint8_t>(125 - static_cast<int>(std::floor(std::log2(static_cast<double>(fan_in)) / 2)) + (bytes[at] & 1));
    }
  }
  return bytes;
}

Matrix matrix_of(std::string name, Format format, std::int64_t rows, std::int64_t cols, std::vector<std::uint8_t> bytes) {
  auto shared = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  const std::int64_t stride = row_bytes(format, cols);
  const auto read = [shared, stride, rows](std::int64_t first, std::int64_t count, std::uint8_t* out) {
    require(first >= 0 && count >= 0 && first + count <= rows, "rows ", first, " to ", first + count, " of a matrix with ", rows);
    std::copy_n(shared->begin() + first * stride, count * stride, out);
  };
  return {.name = std::move(name), .format = format, .rows = rows, .cols = cols, .read = read};
}

class Builder {
 public:
  Builder(std::size_t index, const json& j) : j_(j), seed_(1000 * index) {
    c_.op = text("op");
    c_.name = str(std::string(4 - std::min<std::size_t>(4, std::to_string(index).size()), '0'), index, " ", j.dump());
    c_.floor = j.value("floor", 0.0);
    const json& limit = j.at("nmse");
    c_.computes_twice = limit.is_object();
    c_.nmse_float32 = c_.computes_twice ? limit.at("float32").get<double>() : limit.get<double>();
    c_.nmse_automatic = c_.computes_twice ? limit.at("automatic").get<double>() : limit.get<double>();
    if (j.contains("segments")) {
      for (const json& s : j.at("segments")) {
        const auto optional = [&](std::size_t i) { return s.size() > i ? s.at(i).get<std::int32_t>() : 0; };
        c_.sequences.push_back({s.at(0), s.at(1), {}, {}, optional(2), optional(3), optional(4), optional(5), c_.sequences.size()});
        c_.rows += c_.sequences.back().rows;
      }
    } else {
      c_.rows = number("tokens");
    }
    pad_ = j.value("pad", 0);
  }

  OpCase build() {
    build_op<0>();
    fill_input();
    c_.program.name = c_.op;
    return std::move(c_);
  }

 private:
  // Calls make() for the case's operation. If an operation of Op has no make(), this does not compile.
  template <std::size_t i>
  void build_op() {
    if constexpr (i == std::variant_size_v<Op>) {
      fail(ErrorKind::invalid_argument, "op_cases.json: unknown operation ", c_.op);
    } else {
      using One = std::variant_alternative_t<i, Op>;
      if (c_.op == snake_case(One::kName)) return make(One{});
      build_op<i + 1>();
    }
  }

  std::int32_t number(const char* key) const { return j_.at(key).get<std::int32_t>(); }
  std::string text(const char* key) const { return j_.at(key).get<std::string>(); }
  bool given(const char* key) const { return j_.contains(key) && j_.at(key) != "none"; }

  // ---- slots
  View input(std::int32_t width) {
    if (c_.program.input < 0) {
      c_.program.input = static_cast<std::int32_t>(c_.program.slots.size());
      c_.program.slots.push_back({Rows::tokens, 0});
    }
    std::int32_t& slot = c_.program.slots[static_cast<std::size_t>(c_.program.input)].width;
    const View view{c_.program.input, slot + pad_, width};
    slot = view.col + width;
    return view;
  }
  // Returns a view for the result. With "pad" it is a view of the input slot, and a run checks that the slot's other columns do not change.
  // Otherwise the result gets a slot of its own.
  View output(std::int32_t width, Rows rows = Rows::tokens) {
    if (pad_ > 0 && rows == Rows::tokens && c_.program.input >= 0) return input(width);
    c_.program.slots.push_back({rows, width});
    return {static_cast<std::int32_t>(c_.program.slots.size()) - 1, 0, width};
  }
  void answer(std::vector<View> views) {
    c_.out = std::move(views);
    c_.program.output = c_.out[0].slot;
  }
  // Returns the views of a second operand ("residual" or "add") and of the result.
  std::pair<View, View> second(const std::string& kind, View in, std::int32_t width) {
    if (kind == "none") return {{}, output(width)};
    if (kind == "in") return {in, output(width)};
    const View view = input(width);
    return {view, kind == "out" ? view : output(width)};
  }

  // ---- weights
  MatrixId matrix(const std::string& format, std::int64_t rows, std::int64_t cols, std::int64_t fan_in, std::int32_t experts = 1) {
    const auto m = c_.weights.matrices.size();
    const Format f = format_named(format);
    c_.weights.matrices.push_back(matrix_of(str("m", m), f, rows, cols, random_weights(f, rows, cols, fan_in, seed_ + 100 + m)));
    c_.weights.matrices.back().experts = experts;
    if (j_.value("may_round", false)) c_.weights.matrices.back().rounding = Rounding::floats;
    return static_cast<MatrixId>(m);
  }
  VectorId vector(std::int64_t n, float scale, float offset) {
    const auto v = c_.weights.vectors.size();
    c_.weights.vectors.push_back({str("v", v), Random(seed_ + 200 + v).normals(n, scale, offset)});
    return static_cast<VectorId>(v);
  }

  void ids(std::int32_t below) {
    Random random(seed_ + 1), types(seed_ + 2);
    for (std::int32_t r = 0; r < c_.rows; ++r) {
      c_.ids.push_back(static_cast<std::int32_t>(random.below(below)));
      c_.types.push_back(static_cast<std::int32_t>(types.below(2)));
    }
    c_.ids.front() = 0;
    c_.ids.back() = below - 1;
  }

  // ---- operations
  Activation activation() const { return named<Activation>(text("activation"), kActivations); }

  void make(Embed) {
    const std::int32_t cols = number("cols");
    std::int32_t positions = 0;
    for (const Sequence& s : c_.sequences) positions = std::max(positions, s.past + s.rows);
    Embed op{.out = output(cols), .tokens = matrix(text("format"), number("rows"), cols, 1), .scale = j_.at("scale").get<float>()};
    if (given("positions")) op.positions = matrix(text("positions"), positions, cols, 1);
    if (given("types")) op.types = matrix(text("types"), 2, cols, 1);
    ids(number("rows"));
    if (!given("types")) c_.types.clear();
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Norm) {
    const std::int32_t width = number("width"), group = number("group");
    Norm op{.in = input(width), .kind = named<NormKind>(text("kind"), kNormKinds), .group = group};
    op.eps = j_.at("eps").get<float>();
    op.per_column = j_.value("per_column", false);
    const std::int32_t values = group > 0 && !op.per_column ? group : width;
    if (j_.value("weight", true)) op.weight = vector(values, 0.2f, 1.0f);
    if (j_.at("bias").get<bool>()) op.bias = vector(values, 0.5f, 0.0f);
    std::tie(op.add, op.out) = second(text("add"), op.in, width);
    if (j_.at("in_place").get<bool>()) op.out = op.in;
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Linear) {
    Linear op{.in = input(number("cols")), .activation = activation(), .precise = j_.at("precise").get<bool>()};
    op.scale = j_.value("scale", 1.0f);
    op.softcap = j_.value("softcap", 0.0f);
    if (j_.contains("alphas")) op.alpha_p = j_.at("alphas").at(0), op.alpha_n = j_.at("alphas").at(1);
    std::int32_t width = 0;
    for (const json& part : j_.at("parts")) {
      const std::int32_t rows = part.at("rows");
      width += rows;
      op.parts.push_back({matrix(part.at("format"), rows, op.in.width, op.in.width), VectorId::none});
      if (part.at("bias").get<bool>()) op.parts.back().bias = vector(rows, 0.5f, 0.0f);
    }
    std::tie(op.residual, op.out) = second(text("residual"), op.in, width);
    answer({op.out});
    c_.program.ops.push_back(std::move(op));
  }

  void make(GatedLinear) {
    const std::int32_t rows = number("rows"), cols = number("cols");
    GatedLinear op{.in = input(cols), .out = output(rows)};
    op.gate = matrix(text("gate"), rows, cols, cols);
    op.up = matrix(text("up"), rows, cols, cols);
    if (j_.value("gate_bias", false)) op.gate_bias = vector(rows, 0.5f, 0.0f);
    if (j_.value("up_bias", false)) op.up_bias = vector(rows, 0.5f, 0.0f);
    op.activation = activation();
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(HeadLinear) {
    const std::int32_t heads = number("heads"), rows = number("rows"), cols = number("cols");
    HeadLinear op{.in_step = number("in_step"), .out_step = number("out_step")};
    op.in = input((heads - 1) * op.in_step + cols);
    op.out = output((heads - 1) * op.out_step + rows);
    op.weight = matrix(text("format"), std::int64_t{heads} * rows, cols, cols, heads);
    c_.program.ops.push_back(op);
    std::vector<View> views;
    for (std::int32_t head = 0; head < heads; ++head) views.push_back({op.out.slot, op.out.col + head * op.out_step, rows});
    answer(std::move(views));
  }

  void make(Route) {
    const std::int32_t experts = number("experts"), chosen = number("chosen");
    Route op{.logits = input(experts), .out = output(2 * chosen), .chosen = chosen, .groups = number("groups"), .kept = number("kept")};
    op.score = named<RouteScore>(text("score"), kRouteScores);
    if (j_.at("bias").get<bool>()) op.bias = vector(experts, 0.2f, 0.0f);
    if (j_.value("scales", false)) op.scales = vector(experts, 0.2f, 1.0f);
    op.normalised = j_.at("normalised").get<bool>();
    op.floor = j_.value("floor", 0.0f);
    op.scale = j_.value("scale", 1.0f);
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Experts) {
    const std::int32_t experts = number("experts"), width = number("width"), cols = number("cols");
    Experts op{.in = input(cols), .route = input(2 * number("chosen"))};
    std::tie(op.residual, op.out) = second(text("residual"), op.in, cols);
    const auto stack = [&](const char* format, std::int32_t rows, std::int32_t in) {
      return matrix(text(format), std::int64_t{experts} * rows, in, in, experts);
    };
    if (given("gate")) op.gate = stack("gate", width, cols);
    op.up = stack("up", width, cols);
    op.down = stack("down", cols, width);
    if (j_.value("biases", false)) {
      if (given("gate")) op.gate_bias = vector(std::int64_t{experts} * width, 0.5f, 0.0f);
      op.up_bias = vector(std::int64_t{experts} * width, 0.5f, 0.0f);
      op.down_bias = vector(std::int64_t{experts} * cols, 0.5f, 0.0f);
    }
    op.activation = activation();
    op.limit = j_.value("limit", 0.0f);
    op.shift = j_.value("shift", 0.0f);
    op.scale = j_.value("scale", 1.0f);
    op.weighs_input = j_.value("weighs_input", false);
    route_ = op.route;
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Multiply) {
    const std::int32_t width = number("width");
    Multiply op{.a = input(width), .activation = activation(), .scale = j_.value("scale", 1.0f)};
    if (const std::int32_t repeat = number("repeat"); repeat > 0) op.b = input(width / repeat);
    op.out = j_.at("in_place").get<bool>() ? op.a : output(width);
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  Rope turn(View x) const {
    const json& rope = j_.at("rope");
    Rope op{.x = x, .head_dim = number("head_dim")};
    const int dims = rope.at("dims");
    const auto frequencies = [&](const char* base) {
      std::vector<float> list;
      for (int i = 0; i < dims / 2; ++i) list.push_back(static_cast<float>(std::pow(rope.at(base).get<double>(), -2.0 * i / dims)));
      return list;
    };
    op.table.inv_freq = frequencies("base");
    op.table.original = rope.value("original", 0);
    if (rope.contains("long_base")) op.table.long_inv_freq = frequencies("long_base");
    op.table.base = rope.at("base");
    op.table.growth = rope.value("growth", 0.0f);
    op.table.interleaved = rope.at("interleaved");
    op.table.magnitude = rope.at("magnitude");
    op.temperature = j_.value("temperature", 0.0f);
    op.temperature_length = j_.value("temperature_length", 0), op.temperature_offset = j_.value("temperature_offset", 0);
    return op;
  }
  void make(Rope) {
    const Rope op = turn(input(number("heads") * number("head_dim")));
    c_.program.ops.push_back(op);
    answer({op.x});
  }

  // Adds Store, after Rope of q and k if the case has a rope. The program that stores past positions (OpCase::store) has only these
  // operations.
  void keep(View q, View k, View v) {
    if (j_.contains("rope")) c_.program.ops = {turn(q), turn(k)};
    c_.program.ops.push_back(Store{.k = k, .v = v, .cache = CacheId{0}});
    c_.program.caches.push_back({number("kv_heads"), number("head_dim"), value_dim()});
    c_.store = c_.program;
    c_.store.output = q.slot;
    c_.kv = named<KvFormat>(text("kv"), kKvFormats);
    for (Sequence& s : c_.sequences) s.pages.resize(static_cast<std::size_t>(ceil_div(s.past + s.rows, kPageTokens)));
    for (auto s = c_.sequences.rbegin(); s != c_.sequences.rend(); ++s) {
      for (auto page = s->pages.rbegin(); page != s->pages.rend(); ++page) *page = c_.pages++;
    }
  }
  std::int32_t value_dim() const { return j_.value("value_dim", number("head_dim")); }
  struct Heads {
    View q, k, v;
  };
  Heads heads() {
    Heads views;
    views.q = input(number("heads") * number("head_dim"));
    views.k = input(number("kv_heads") * number("head_dim"));
    views.v = input(number("kv_heads") * value_dim());
    return views;
  }

  void make(Store) { make(Attend{}); }

  void make(Attend) {
    const auto [q, k, v] = heads();
    const bool cached = j_.at("cached").get<bool>();
    if (cached) keep(q, k, v);
    Attend op{.q = q, .out = output(number("heads") * value_dim()), .key_dim = number("head_dim"), .value_dim = value_dim()};
    op.kv_heads = number("kv_heads"), op.window = number("window"), op.chunk = j_.value("chunk", 0);
    op.scale = j_.at("scale").get<float>();
    op.softcap = j_.at("softcap").get<float>();
    op.causal = cached || j_.value("causal", false);
    if (j_.contains("reach")) op.reach = number("reach");
    if (j_.contains("places")) {
      for (const auto& kind : j_.at("places")) (kind == "by_query" ? op.by_query : op.by_key) = input(number("heads") * number("numbers"));
      std::vector<float> places;
      for (std::int32_t d = 0; d <= 2 * op.reach; ++d) places.push_back(static_cast<float>((7 * d + 3) % number("numbers")));
      c_.weights.vectors.push_back({"places", std::move(places)});
      op.places = static_cast<VectorId>(c_.weights.vectors.size() - 1);
    } else if (j_.contains("reach")) {
      op.bias = vector(std::int64_t{number("heads")} * (2 * op.reach + 1), 1.0f, 0.0f);
    }
    if (j_.value("slopes", false)) op.slopes = vector(number("heads"), 0.03f, 0.1f);
    if (j_.contains("sinks")) op.sinks = vector(number("heads"), 2.0f, j_.at("sinks").get<float>());
    if (cached) {
      op.cache = CacheId{0};
    } else {
      op.k = k, op.v = v;
    }
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  // The state of a case's operation, or none.
  StateId state(const StateShape& shape) {
    if (!j_.value("state", false)) return StateId::none;
    c_.program.states.push_back(shape);
    return StateId{0};
  }

  void make(Conv) {
    const std::int32_t width = number("width"), taps = number("taps");
    Conv op{.in = input(width), .out = output(width), .taps = vector(std::int64_t{taps} * width, 0.5f, 0.0f)};
    if (j_.at("bias").get<bool>()) op.bias = vector(width, 0.5f, 0.0f);
    op.width = taps;
    op.activation = activation();
    op.centred = j_.value("centred", false);
    op.state = state({1, taps - 1, width});
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Scan) {
    const std::int32_t heads = number("heads"), key_heads = number("key_heads"), keys = number("key_dim"), values = number("value_dim");
    Scan op{.q = input(key_heads * keys), .k = input(key_heads * keys), .v = input(heads * values), .step = input(heads)};
    op.rule = named<ScanRule>(text("rule"), kScanRules);
    if (op.rule == ScanRule::delta) op.beta = input(heads);
    op.out = output(heads * values);
    if (j_.at("step_bias").get<bool>()) op.step_bias = vector(heads, 1.0f, 0.5f);
    op.rate = vector(heads, 0.3f, -1.0f);
    if (j_.value("skip", false)) op.skip = vector(heads, 1.0f, 1.0f);
    op.key_heads = key_heads, op.key_dim = keys, op.value_dim = values;
    op.tiled = j_.value("tiled", false);
    op.floor = j_.value("floor", 0.0f);
    op.strength = j_.value("strength", 1.0f);
    op.state = state({heads, keys, values});
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Select) {
    c_.selected = j_.at("selected").get<std::vector<std::int32_t>>();
    const Select op{.in = input(number("width")), .out = output(number("width"), Rows::selected)};
    c_.program.ops.push_back(op);
    answer({op.out});
  }
  void make(Pool) {
    const View in = input(number("width"));
    const Pool op{.in = in, .out = output(in.width, Rows::segments), .kind = named<PoolKind>(text("kind"), kPoolKinds)};
    c_.program.ops.push_back(op);
    answer({op.out});
  }
  void make(LogProb) {
    const LogProb op{.logits = input(number("width")), .out = output(1)};
    ids(number("width"));
    c_.types.clear();
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make(Top) {
    const std::int32_t width = number("width"), k = number("k"), reported = number("reported");
    const Top op{.logits = input(width), .out = output(static_cast<std::int32_t>(top_width(k, reported))), .k = k, .reported = reported};
    Random random(seed_ + 3);
    c_.reported_first.push_back(0);
    for (std::int32_t r = 0; r < c_.rows; ++r) {
      std::set<std::int32_t> ids;
      const auto draws = static_cast<std::int32_t>(random.below(reported + 1));
      for (std::int32_t i = 0; i < reported; ++i) {
        const auto id = static_cast<std::int32_t>(random.below(width));
        if (i < draws) ids.insert(id);
      }
      c_.reported.insert(c_.reported.end(), ids.begin(), ids.end());
      c_.reported_first.push_back(static_cast<std::int32_t>(c_.reported.size()));
    }
    if (j_.value("masks", false)) make_masks(width);
    c_.program.ops.push_back(op);
    answer({op.out});
  }

  void make_masks(std::int32_t width) {
    Random random(seed_ + 4);
    const std::size_t words = mask_words(width);
    for (std::int32_t r = 0; r < c_.rows; ++r) {
      const std::size_t first = c_.allowed.size();
      c_.allowed_first.push_back(r % 5 == 0 ? -1 : static_cast<std::int32_t>(first));
      if (r % 5 == 0) continue;
      c_.allowed.resize(first + words, r % 5 == 1 ? ~0u : 0u);
      if (r % 5 == 3) {
        const auto id = static_cast<std::size_t>(random.below(width));
        c_.allowed[first + id / 32] = 1u << id % 32;
      } else if (r % 5 == 4) {
        for (std::size_t w = first; w < first + words; ++w) c_.allowed[w] = static_cast<std::uint32_t>(random.bits());
      }
    }
  }

  // ---- data. Called last, because the operations set the widths of the slots.
  void fill_input() {
    const float spread = j_.value("spread", 1.0f), offset = j_.value("offset", 0.0f);
    if (c_.program.input >= 0) {
      c_.in_width = c_.program.slots[static_cast<std::size_t>(c_.program.input)].width;
      c_.in = Random(seed_).normals(std::int64_t{c_.rows} * c_.in_width, spread, offset);
      if (const float steps = j_.value("steps", 0.0f); steps > 0) {
        for (float& x : c_.in) x = std::nearbyint(x * steps) / steps;
      }
      if (route_) fill_routes();
      if (!c_.store.ops.empty() || !c_.program.states.empty()) {
        c_.store.name = "store";
        c_.store.slots = c_.program.slots;
        for (std::size_t s = 0; s < c_.sequences.size(); ++s) {
          c_.sequences[s].past_in = Random(seed_ + 10 + s).normals(std::int64_t{c_.sequences[s].past} * c_.in_width, spread, offset);
        }
      }
    }
    const SlotShape& out = c_.program.slots[static_cast<std::size_t>(c_.program.output)];
    c_.out_rows = out.rows;
    c_.out_width = out.width;
  }

  // The columns of a case of Experts that say which experts a row has, and how much they count.
  void fill_routes() {
    const std::int32_t chosen = route_.width / 2, experts = number("experts"), turn = number("turn"), step = number("step");
    for (std::int32_t r = 0; r < c_.rows; ++r) {
      float* row = c_.in.data() + std::int64_t{r} * c_.in_width + route_.col;
      for (std::int32_t i = 0; i < chosen; ++i) {
        row[i] = static_cast<float>((turn * r + step * i) % experts);
        row[chosen + i] = 0.125f * static_cast<float>(1 + (3 * r + 2 * i) % 7);
      }
    }
  }

  const json& j_;
  std::uint64_t seed_;
  OpCase c_;
  View route_;
  std::int32_t pad_ = 0;
};

}  // namespace

Matrix random_matrix(std::string name, Format format, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  return matrix_of(std::move(name), format, rows, cols, random_weights(format, rows, cols, cols, seed));
}

OpCases::OpCases(const std::string& path) {
  std::ifstream file(path);
  require(static_cast<bool>(file), path, " cannot be read");
  json all = json::parse(file);
  for (const FormatInfo& f : kFormats) {  // halves() must be equal to the table in the file
    std::vector<Half> in_file;
    if (all.at("halves").contains(f.name)) {
      for (const json& h : all.at("halves").at(std::string(f.name))) in_file.push_back({h.at(0), h.at(1)});
    }
    const auto same = [](const Half& a, const Half& b) { return a.offset == b.offset && a.factor == b.factor; };
    const std::vector<Half> here = halves(f.format);
    require(std::equal(here.begin(), here.end(), in_file.begin(), in_file.end(), same), path, ": halves of ", f.name, " differ");
  }
  cases_ = std::move(all.at("cases"));
}

const OpCases& op_cases() {
  static const OpCases all(PUMICE_TESTS_DIR "/op_cases.json");
  return all;
}

std::string OpCases::variant(std::size_t i) const {
  const json& c = cases_.at(i);
  if (c.contains("parts")) return c.at("parts").at(0).at("format");
  for (const char* key : {"format", "gate", "kind", "kv", "activation"}) {
    if (c.contains(key)) return c.at(key);
  }
  return {};
}

OpCase OpCases::operator[](std::size_t i) const { return Builder(i, cases_.at(i)).build(); }

Slice all_rows(const OpCase& c) { return {0, c.rows, c.sequences, true}; }

Slice some_rows(const OpCase& c, std::int32_t first, std::int32_t count) {
  Slice slice{first, count, {}, false};
  std::int32_t row = 0;
  for (const Sequence& s : c.sequences) {
    const std::int32_t begin = std::max(first, row), end = std::min(first + count, row + s.rows);
    if (begin < end)
      slice.sequences.push_back({s.past + begin - row, end - begin, s.pages, {}, s.length, s.prompt, s.unseen, s.ahead, s.index});
    row += s.rows;
  }
  return slice;
}

bool needs_whole_segments(const OpCase& c) { return c.op == "pool" || check_program(c.program, shapes_of(c.weights)).keeps_no_past; }

OpRun::OpRun(const OpCase& c, Backend& backend, Compute compute, Crew crew) : case_(c) {
  Weights kept = c.weights;
  for (Matrix& matrix : kept.matrices) {
    if (compute != Compute::automatic) matrix.rounding = Rounding::none;
  }
  const auto weights = backend.pack(kept, {}, {}, Cancel());
  program_ = backend.prepare(c.program, weights, compute);
  workspace_ = backend.make_workspace(crew);
  if (c.program.caches.empty() && c.program.states.empty()) return;
  caches_ = backend.make_caches(c.program, c.kv);
  caches_->reserve(c.pages);
  if (!c.program.states.empty()) save_states();
  if (c.store.ops.empty()) return;
  store_ = backend.prepare(c.store, weights, compute);
  std::vector<float> turned;
  for (const Sequence& s : c.sequences) {
    if (s.past == 0) continue;
    const Segment segment{0, s.past, 0, s.pages, s.length};
    turned.resize(s.past_in.size());
    store_->run(*workspace_, caches_.get(), {.rows = s.past, .segments = {&segment, 1}}, {s.past_in, turned}, Cancel());
  }
}

// Saves the state after each position of each sequence, so that a run can begin at any position.
void OpRun::save_states() {
  std::int32_t states = 0, row = 0;
  for (const Sequence& s : case_.sequences) {
    first_state_.push_back(states);
    states += s.past + s.rows;
  }
  free_state_ = states;
  caches_->reserve_states(states + static_cast<std::int32_t>(case_.sequences.size()));
  for (std::size_t i = 0; i < case_.sequences.size(); ++i) {
    const Sequence& s = case_.sequences[i];
    const auto width = static_cast<std::size_t>(case_.in_width);
    const auto save = [&](std::int32_t past, std::int32_t rows, std::span<const float> in) {
      if (rows == 0) return;
      std::vector<SavedState> saves;
      for (std::int32_t r = 0; r < rows; ++r) saves.push_back({r + 1, first_state_[i] + past + r});
      const Segment segment{.first = 0, .rows = rows, .past = past, .length = s.length, .state = state_before(i, past), .saves = saves};
      std::vector<float> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(case_.out_width));
      program_->run(*workspace_, caches_.get(), {.rows = rows, .segments = {&segment, 1}}, {in, out}, Cancel());
    };
    save(0, s.past, s.past_in);
    save(s.past, s.rows, std::span(case_.in).subspan(static_cast<std::size_t>(row) * width, static_cast<std::size_t>(s.rows) * width));
    row += s.rows;
  }
}

std::int32_t OpRun::state_before(std::size_t sequence, std::int32_t position) const {
  return first_state_.empty() || position == 0 ? -1 : first_state_[sequence] + position - 1;
}

namespace {

// Appends the valid words of a row of Top's output as floats. Ids and counts are below 2^24, so floats represent them exactly.
void add_numbers(const TopRow& row, std::int32_t reported, std::vector<float>& numbers) {
  for (const std::int32_t n : {row.not_finite(), row.first_not_finite(), row.count()}) numbers.push_back(static_cast<float>(n));
  for (std::int32_t i = 0; i < row.k; ++i) {
    numbers.push_back(i < row.count() ? row.logit(i) : 0);
    numbers.push_back(static_cast<float>(row.id(i)));
  }
  for (std::int32_t i = 0; i < reported; ++i) numbers.push_back(row.reported(i));
}

}  // namespace

std::vector<float> OpRun::operator()(const Slice& slice) {
  const OpCase& c = case_;
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return all.empty() ? std::span<const std::int32_t>()
                       : std::span(all).subspan(static_cast<std::size_t>(slice.first), static_cast<std::size_t>(slice.rows));
  };
  std::vector<Segment> segments;
  std::vector<SavedState> saves(slice.sequences.size());
  std::int32_t row = 0;
  for (std::size_t i = 0; i < slice.sequences.size(); ++i) {
    const Sequence& s = slice.sequences[i];
    segments.push_back({row, s.rows, s.past, s.pages, s.length, s.prompt, s.unseen, -1, {}, s.ahead});
    row += s.rows;
    if (first_state_.empty()) continue;
    saves[i] = {s.rows, free_state_ + static_cast<std::int32_t>(i)};
    segments.back().state = state_before(s.index, s.past);
    segments.back().saves = {&saves[i], 1};
  }
  Batch batch{.rows = slice.rows, .ids = part(c.ids), .types = part(c.types), .segments = segments};
  if (slice.whole) batch.selected = c.selected;
  if (!c.reported_first.empty()) {
    batch.reported = c.reported;
    batch.reported_first =
        std::span(c.reported_first).subspan(static_cast<std::size_t>(slice.first), static_cast<std::size_t>(slice.rows) + 1);
  }
  batch.allowed = c.allowed;
  batch.allowed_first = part(c.allowed_first);
  const std::size_t out_rows = c.out_rows == Rows::tokens     ? static_cast<std::size_t>(slice.rows)
                               : c.out_rows == Rows::segments ? segments.size()
                                                              : batch.selected.size();
  std::vector<float> out(out_rows * static_cast<std::size_t>(c.out_width), std::numeric_limits<float>::quiet_NaN());
  const std::span<const float> in = std::span(c.in).subspan(static_cast<std::size_t>(slice.first) * static_cast<std::size_t>(c.in_width),
                                                            static_cast<std::size_t>(slice.rows) * static_cast<std::size_t>(c.in_width));
  program_->run(*workspace_, caches_.get(), batch, {in, out}, Cancel());
  if (c.program.output == c.program.input) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto col = static_cast<std::int32_t>(i % static_cast<std::size_t>(c.out_width));
      const auto inside = [&](const View& view) { return col >= view.col && col < view.col + view.width; };
      const bool kept = std::memcmp(&out[i], &in[i], sizeof(float)) == 0;
      require(kept || std::any_of(c.out.begin(), c.out.end(), inside), c.name, ": column ", col, " outside the result was changed");
    }
  }
  std::vector<float> counted;
  if (const auto* top = std::get_if<Top>(&c.program.ops.back())) {
    for (std::size_t r = 0; r < out_rows; ++r) {
      const std::size_t first = r * static_cast<std::size_t>(c.out_width) + static_cast<std::size_t>(top->out.col);
      add_numbers({std::span(out).subspan(first, static_cast<std::size_t>(top->out.width)), top->k},
                  batch.reported_first[r + 1] - batch.reported_first[r], counted);
    }
    return counted;
  }
  for (std::size_t r = 0; r < out_rows; ++r) {
    for (const View& view : c.out) {
      const auto from = out.begin() + static_cast<std::ptrdiff_t>(r * static_cast<std::size_t>(c.out_width)) + view.col;
      counted.insert(counted.end(), from, from + view.width);
    }
  }
  return counted;
}

double nmse(const std::vector<float>& a, const std::vector<float>& b, double floor) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double error = 0, power = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    power += std::pow(static_cast<double>(b[i]), 2);
  }
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  if (error == 0) return 0;
  return error / std::max(power, floor * static_cast<double>(a.size()));
}

}  // namespace pumice::cases
