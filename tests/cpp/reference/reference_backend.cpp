#include "reference/reference_backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/attend_score.h"
#include "core/checked.h"
#include "core/program_check.h"

namespace pumice::reference {

namespace {

struct DoubleMatrix {
  std::string name;
  std::int64_t rows = 0, cols = 0, experts = 1;
  std::vector<double> values;
  const double* row(std::int64_t r) const { return values.data() + r * cols; }
};

struct DoubleWeights : DeviceWeights {
  std::vector<DoubleMatrix> matrices;  // matrices that no program uses have no values
  std::vector<std::vector<double>> vectors;

  std::uint64_t bytes() const override {
    std::uint64_t numbers = 0;
    for (const auto& m : matrices) numbers += m.values.size();
    for (const auto& v : vectors) numbers += v.size();
    return numbers * sizeof(double);
  }
  const DoubleMatrix& operator[](MatrixId id) const {
    const DoubleMatrix& matrix = matrices.at(static_cast<std::size_t>(id));
    require(!matrix.values.empty(), "reference: the program uses matrix ", matrix.name, ", which was not loaded");
    return matrix;
  }
  const std::vector<double>& operator[](VectorId id) const { return vectors.at(static_cast<std::size_t>(id)); }
};

struct DoubleCaches : CacheStore {
  struct Cache {
    CacheShape shape;
    std::vector<double> k, v;  // k[page][32][heads * key_dim], v[page][32][heads * value_dim]
    struct Half {
      std::vector<double>& numbers;
      std::int64_t width;  // numbers per position
      std::int64_t page() const { return kPageTokens * width; }
    };
    std::array<Half, 2> halves() {
      return {{{k, std::int64_t{shape.heads} * shape.key_dim}, {v, std::int64_t{shape.heads} * shape.value_dim}}};
    }
  };
  std::vector<Cache> caches;
  std::vector<StateShape> shapes;
  std::vector<std::vector<std::vector<double>>> states;  // by number and StateId: matrices x rows x cols

  void reserve_states(std::int32_t count) override {
    while (static_cast<std::int32_t>(states.size()) < count) {
      std::vector<std::vector<double>>& state = states.emplace_back();
      for (const StateShape& shape : shapes)
        state.emplace_back(static_cast<std::size_t>(numbers_of(shape)), std::numeric_limits<double>::quiet_NaN());
    }
  }
  void read_state(std::int32_t state, std::uint8_t* out) override {
    for (const std::vector<double>& numbers : states.at(static_cast<std::size_t>(state))) {
      std::memcpy(out, numbers.data(), numbers.size() * sizeof(double));
      out += numbers.size() * sizeof(double);
    }
  }
  void write_state(std::int32_t state, const std::uint8_t* in) override {
    for (std::vector<double>& numbers : states.at(static_cast<std::size_t>(state))) {
      std::memcpy(numbers.data(), in, numbers.size() * sizeof(double));
      in += numbers.size() * sizeof(double);
    }
  }
  std::uint64_t state_bytes() const override {
    std::int64_t numbers = 0;
    for (const StateShape& shape : shapes) numbers += numbers_of(shape);
    return static_cast<std::uint64_t>(numbers) * sizeof(double);
  }
  static std::int64_t numbers_of(const StateShape& shape) { return std::int64_t{shape.matrices} * shape.rows * shape.cols; }

  void reserve(std::int32_t pages) override {
    for (Cache& c : caches) {
      for (const Cache::Half& half : c.halves()) {
        const auto numbers = static_cast<std::size_t>(pages * half.page());
        if (numbers > half.numbers.size()) half.numbers.resize(numbers, std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  void copy_page(std::int32_t from, std::int32_t to) override {
    for (Cache& c : caches) {
      for (const Cache::Half& half : c.halves())
        std::copy_n(half.numbers.begin() + from * half.page(), half.page(), half.numbers.begin() + to * half.page());
    }
  }
  void read_pages(std::span<const std::int32_t> pages, std::uint8_t* out, std::uint64_t stride) override {
    each_half(pages, stride, [&](std::uint64_t at, double* page, std::size_t bytes) { std::memcpy(out + at, page, bytes); });
  }
  void write_pages(std::span<const std::int32_t> pages, const std::uint8_t* in, std::uint64_t stride) override {
    each_half(pages, stride, [&](std::uint64_t at, double* page, std::size_t bytes) { std::memcpy(page, in + at, bytes); });
  }
  template <class Each>
  void each_half(std::span<const std::int32_t> pages, std::uint64_t stride, Each&& each) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::uint64_t at = i * stride;
      for (Cache& c : caches)
        for (const Cache::Half& half : c.halves()) {
          const auto page = static_cast<std::size_t>(half.page());
          each(at, half.numbers.data() + static_cast<std::size_t>(pages[i]) * page, page * sizeof(double));
          at += page * sizeof(double);
        }
    }
  }
  std::uint64_t page_bytes() const override {
    std::int64_t numbers = 0;
    for (const Cache& c : caches) numbers += kPageTokens * c.shape.heads * (c.shape.key_dim + c.shape.value_dim);
    return static_cast<std::uint64_t>(numbers) * sizeof(double);
  }
};

// The parameters alpha_p and alpha_n of the activation xielu.
struct Alphas {
  double p = 0, n = 0;
};
double activate(Activation activation, double x, Alphas alphas = {}) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::tanh:
      return std::tanh(x);
    case Activation::relu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::quick_gelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::xielu:
      return x > 0 ? alphas.p * x * x + 0.5 * x : alphas.n * (std::expm1(std::min(x, -1e-6)) - x) + 0.5 * x;
    case Activation::softplus:
      return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  }
  fail(ErrorKind::invalid_argument, "reference: activation ", static_cast<int>(activation));
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// One run of a program. It holds the slots, and its operator() for each kind of operation computes that operation.
class Run {
 public:
  Run(const Program& program, const DoubleWeights& weights, DoubleCaches* caches, const Batch& batch)
      : program_(program), weights_(weights), caches_(caches), batch_(batch) {
    for (const SlotShape& shape : program.slots) slots_.emplace_back(static_cast<std::size_t>(rows(shape.rows) * shape.width), 0.0);
    for (const Segment& s : batch.segments) {
      for (std::int32_t i = 0; i < s.rows; ++i) {
        positions_.push_back(s.past + i);
        turned_.push_back(s.past + i + s.ahead);
        lengths_.push_back(std::max(s.length, s.past + i + s.ahead + 1));
      }
    }
    require(batch.segments.empty() || positions_.size() == static_cast<std::size_t>(batch.rows), "reference: the segments have ",
            positions_.size(), " rows, the batch ", batch.rows);
  }

  void fill(std::span<const float> in) {
    std::vector<double>& slot = slots_.at(static_cast<std::size_t>(program_.input));
    require(in.size() == slot.size(), "reference: ", in.size(), " numbers come in, ", slot.size(), " are needed");
    std::copy(in.begin(), in.end(), slot.begin());
  }
  void drain(std::span<float> out) const {
    const std::vector<double>& slot = slots_.at(static_cast<std::size_t>(program_.output));
    require(out.size() == slot.size(), "reference: room for ", out.size(), " numbers, ", slot.size(), " come out");
    std::transform(slot.begin(), slot.end(), out.begin(), [](double x) { return static_cast<float>(x); });
  }

  void operator()(const Embed& op) {
    const DoubleMatrix& tokens = weights_[op.tokens];
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      double* out = at(op.out, r);
      const double* token = checked_row(tokens, id(r));
      for (std::int64_t c = 0; c < op.out.width; ++c) out[c] = op.scale * token[c];
      if (op.positions != MatrixId::none) add(checked_row(weights_[op.positions], position(r)), op.out.width, out);
      if (op.types != MatrixId::none) {
        add(checked_row(weights_[op.types], batch_.types.empty() ? 0 : batch_.types[static_cast<std::size_t>(r)]), op.out.width, out);
      }
    }
  }

  void operator()(const Norm& op) {
    const std::int64_t group = op.group > 0 ? op.group : op.in.width;
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      for (std::int64_t first = 0; first < op.in.width; first += group) {
        const std::vector<double> x(at(op.in, r) + first, at(op.in, r) + first + group);
        double mean = 0, square = 0;
        if (op.kind == NormKind::layer) {
          for (const double v : x) mean += v / static_cast<double>(group);
        }
        for (const double v : x) square += (v - mean) * (v - mean) / static_cast<double>(group);
        double* out = at(op.out, r) + first;
        for (std::int64_t c = 0; c < group; ++c) {
          const std::int64_t own = op.per_column ? first + c : c;
          double y = (x[c] - mean) / std::sqrt(square + op.eps);
          if (op.weight != VectorId::none) y *= value_of(op.weight, own);
          y += value_of(op.bias, own);
          out[c] = op.add ? at(op.add, r)[first + c] + y : y;
        }
      }
    }
  }

  void operator()(const Linear& op) {
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      const std::vector<double> x(at(op.in, r), at(op.in, r) + op.in.width);
      double* out = at(op.out, r);
      for (const LinearPart& part : op.parts) {
        const DoubleMatrix& weight = checked_cols(weights_[part.weight], op.in.width);
        for (std::int64_t c = 0; c < weight.rows; ++c, ++out) {
          const double sum = op.scale * dot(x.data(), weight.row(c), weight.cols) + value_of(part.bias, c);
          const double y = capped(activate(op.activation, sum, {op.alpha_p, op.alpha_n}), op.softcap);
          *out = y + (op.residual ? at(op.residual, r)[out - at(op.out, r)] : 0);
        }
      }
      require(out - at(op.out, r) == op.out.width, "reference: the parts of a Linear fill ", out - at(op.out, r), " of ", op.out.width,
              " columns");
    }
  }

  void operator()(const GatedLinear& op) {
    const DoubleMatrix &gate = checked_cols(weights_[op.gate], op.in.width), &up = checked_cols(weights_[op.up], op.in.width);
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      const std::vector<double> x(at(op.in, r), at(op.in, r) + op.in.width);
      for (std::int64_t c = 0; c < op.out.width; ++c) {
        at(op.out, r)[c] = activate(op.activation, dot(x.data(), gate.row(c), gate.cols) + value_of(op.gate_bias, c)) *
                           (dot(x.data(), up.row(c), up.cols) + value_of(op.up_bias, c));
      }
    }
  }

  void operator()(const HeadLinear& op) {
    const DoubleMatrix& weight = weights_[op.weight];
    const std::int64_t each = weight.rows / weight.experts;
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      for (std::int64_t head = 0; head < weight.experts; ++head) {
        for (std::int64_t c = 0; c < each; ++c)
          at(op.out, r)[head * op.out_step + c] = dot(at(op.in, r) + head * op.in_step, weight.row(head * each + c), weight.cols);
      }
    }
  }

  void operator()(const Route& op) {
    const std::int64_t experts = op.logits.width, size = experts / op.groups;
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      const double* logits = at(op.logits, r);
      std::vector<double> scores(logits, logits + experts), ranks;
      const double largest = *std::ranges::max_element(scores);
      const bool by_logit = op.score == RouteScore::sigmoid && op.bias == VectorId::none && op.groups == 1;
      double total = 0;
      for (double& s : scores) total += s = op.score == RouteScore::sigmoid ? 1 / (1 + std::exp(-s)) : std::exp(s - largest);
      for (std::int64_t e = 0; e < experts; ++e) {
        if (op.score == RouteScore::softmax) scores[static_cast<std::size_t>(e)] /= total;
        ranks.push_back(by_logit ? logits[e] : scores[static_cast<std::size_t>(e)] + value_of(op.bias, e));
      }
      std::vector<std::pair<double, std::int64_t>> groups;  // the negative sum of the two largest ranks, and the group
      for (std::int64_t g = 0; g < op.groups && op.groups > 1; ++g) {
        std::vector<double> own(ranks.begin() + g * size, ranks.begin() + (g + 1) * size);
        std::ranges::sort(own, std::greater<>());
        groups.emplace_back(-(own[0] + own[1]), g);
      }
      std::ranges::sort(groups);
      for (std::size_t g = static_cast<std::size_t>(op.kept); g < groups.size(); ++g)
        std::fill_n(ranks.begin() + groups[g].second * size, size, -std::numeric_limits<double>::infinity());
      std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t e) { return ranks[static_cast<std::size_t>(e)]; });
      double sum = op.floor;
      for (std::int32_t i = 0; i < op.chosen; ++i) sum += scores[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
      for (std::int32_t i = 0; i < op.chosen; ++i) {
        const std::int64_t e = order[static_cast<std::size_t>(i)];
        at(op.out, r)[i] = static_cast<double>(e);
        const double weight = scores[static_cast<std::size_t>(e)] / (op.normalised ? sum : 1) * op.scale;
        at(op.out, r)[op.chosen + i] = weight * (op.scales == VectorId::none ? 1 : value_of(op.scales, e));
      }
    }
  }

  void operator()(const Experts& op) {
    const DoubleMatrix &up = weights_[op.up], &down = weights_[op.down];
    const std::int64_t width = down.cols, chosen = op.route.width / 2;
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      std::vector<double> sum(static_cast<std::size_t>(op.out.width), 0.0);
      for (std::int64_t j = 0; j < chosen; ++j) {
        const auto e = static_cast<std::int64_t>(at(op.route, r)[j]);
        const double weight = at(op.route, r)[chosen + j];
        std::vector<double> x(at(op.in, r), at(op.in, r) + op.in.width), h;
        if (op.weighs_input)
          for (double& value : x) value *= weight;
        for (std::int64_t i = 0; i < width; ++i) {
          double u = dot(x.data(), up.row(e * width + i), up.cols) + value_of(op.up_bias, e * width + i);
          if (op.gate == MatrixId::none) {
            h.push_back(activate(op.activation, u));
            continue;
          }
          double g = dot(x.data(), weights_[op.gate].row(e * width + i), up.cols) + value_of(op.gate_bias, e * width + i);
          if (op.limit > 0) g = std::min(g, double{op.limit}), u = std::clamp(u, -double{op.limit}, double{op.limit});
          h.push_back(activate(op.activation, g) * (u + op.shift));
        }
        for (std::int64_t c = 0; c < op.out.width; ++c) {
          const double y = dot(h.data(), down.row(e * op.out.width + c), width) + value_of(op.down_bias, e * op.out.width + c);
          sum[static_cast<std::size_t>(c)] += op.weighs_input ? y : weight * y;
        }
      }
      for (std::int64_t c = 0; c < op.out.width; ++c)
        at(op.out, r)[c] = op.scale * sum[static_cast<std::size_t>(c)] + (op.residual ? at(op.residual, r)[c] : 0);
    }
  }

  void operator()(const Multiply& op) {
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      for (std::int64_t c = 0; c < op.out.width; ++c) {
        const double b = op.b ? activate(op.activation, at(op.b, r)[c / (op.a.width / op.b.width)]) : 1;
        at(op.out, r)[c] = double{op.scale} * at(op.a, r)[c] * b;
      }
    }
  }

  void operator()(const Rope& op) {
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      double* x = at(op.x, r);
      require(!turned_.empty(), "reference: positions need segments");
      const std::int64_t position = turned_[static_cast<std::size_t>(r)];
      for (std::int64_t head = 0; head < op.x.width; head += op.head_dim)
        turn(x + head, op.table, position, lengths_[static_cast<std::size_t>(r)]);
      if (op.temperature_length == 0) continue;
      const std::int64_t lengths = (position + op.temperature_offset) / op.temperature_length;
      for (std::int32_t c = 0; c < op.x.width; ++c) x[c] *= 1 + op.temperature * std::log(1 + static_cast<double>(lengths));
    }
  }

  void operator()(const Store& op) {
    const auto [keys, values] = cache(op.cache).halves();
    for (const Segment& s : batch_.segments) {
      for (std::int32_t i = 0; i < s.rows; ++i) {
        std::copy_n(at(op.k, s.first + i), keys.width, kept(keys, s, s.past + i));
        std::copy_n(at(op.v, s.first + i), values.width, kept(values, s, s.past + i));
      }
    }
  }

  void operator()(const Attend& op) {
    const std::int64_t heads = op.q.width / op.key_dim, sharing = heads / op.kv_heads;
    const AttendScore<double> score(op, values_of(op.bias), values_of(op.slopes), values_of(op.places));
    for (const Segment& s : batch_.segments) {
      for (std::int32_t i = 0; i < s.rows; ++i) {
        const bool cached = op.cache != CacheId::none;
        const std::int64_t self = cached ? s.past + i : i;
        const KeyRange keys = keys_seen(op, self, s.rows - s.unseen - 1);
        const double* by_query = op.by_query ? at(op.by_query, s.first + i) : nullptr;
        for (std::int64_t head = 0; head < heads; ++head) {
          const double* q = at(op.q, s.first + i) + head * op.key_dim;
          const std::int64_t shared = head / sharing;
          std::vector<const double*> values;
          std::vector<double> scores;
          for (std::int64_t j = keys.first; j <= keys.last; ++j) {
            const double* k = (cached ? kept(cache(op.cache).halves()[0], s, j) : at(op.k, s.first + j)) + shared * op.key_dim;
            values.push_back((cached ? kept(cache(op.cache).halves()[1], s, j) : at(op.v, s.first + j)) + shared * op.value_dim);
            const double* by_key = op.by_key ? at(op.by_key, s.first + j) : nullptr;
            scores.push_back(score(head, self, j, dot(q, k, op.key_dim), by_query, by_key));
          }
          const bool sinks = op.sinks != VectorId::none;
          const double sink = sinks ? value_of(op.sinks, head) : -std::numeric_limits<double>::infinity();
          const double largest = std::max(sink, *std::max_element(scores.begin(), scores.end()));
          double sum = sinks ? std::exp(sink - largest) : 0;
          std::vector<double> mixed(static_cast<std::size_t>(op.value_dim), 0.0);
          for (std::size_t j = 0; j < scores.size(); ++j) {
            const double weight = std::exp(scores[j] - largest);
            sum += weight;
            for (std::int32_t c = 0; c < op.value_dim; ++c) mixed[c] += weight * values[j][c];
          }
          for (std::int32_t c = 0; c < op.value_dim; ++c) at(op.out, s.first + i)[head * op.value_dim + c] = mixed[c] / sum;
        }
      }
    }
  }

  void operator()(const Conv& op) {
    const std::int64_t width = op.in.width, kept = op.width - 1;
    for (const Segment& s : batch_.segments) {
      const double* before = state_before(op.state, s);
      const auto row = [&](std::int64_t t) -> const double* {
        if (t >= 0) return t < s.rows ? at(op.in, s.first + t) : nullptr;
        return before && kept + t >= 0 ? before + (kept + t) * width : nullptr;
      };
      for (std::int64_t t = 0; t < s.rows; ++t) {
        for (std::int64_t c = 0; c < width; ++c) {
          double sum = value_of(op.bias, c);
          for (std::int64_t j = 0; j < op.width; ++j) {
            const double* x = row(t - (op.centred ? kept / 2 : kept) + j);
            sum += value_of(op.taps, j * width + c) * (x ? x[c] : 0);
          }
          at(op.out, s.first + t)[c] = activate(op.activation, sum);
        }
        for (double* to : saved_after(op.state, s, t)) {
          for (std::int64_t j = 0; j < kept; ++j) {
            const double* x = row(t - kept + 1 + j);
            for (std::int64_t c = 0; c < width; ++c) *to++ = x ? x[c] : 0;
          }
        }
      }
    }
  }

  void operator()(const Scan& op) {
    const std::int64_t heads = op.v.width / op.value_dim, keys = op.key_dim, values = op.value_dim;
    for (const Segment& s : batch_.segments) {
      std::vector<double> state(static_cast<std::size_t>(heads * keys * values), 0.0);
      if (const double* before = state_before(op.state, s)) state.assign(before, before + state.size());
      for (std::int64_t t = 0; t < s.rows; ++t) {
        for (std::int64_t head = 0; head < heads; ++head) {
          double* matrix = state.data() + head * keys * values;
          const std::int64_t key_head = op.tiled ? head % op.key_heads : head / (heads / op.key_heads);
          const double *q = at(op.q, s.first + t) + key_head * keys, *k = at(op.k, s.first + t) + key_head * keys;
          const double* v = at(op.v, s.first + t) + head * values;
          const double step = at(op.step, s.first + t)[head] + value_of(op.step_bias, head);
          const double dt = std::max(activate(Activation::softplus, step), double{op.floor}), a = std::exp(value_of(op.rate, head) * dt);
          for (std::int64_t c = 0; c < values; ++c) {
            double read = 0, out = 0;
            for (std::int64_t i = 0; i < keys; ++i) read += matrix[i * values + c] * k[i];
            const double added = op.rule == ScanRule::ssd
                                     ? dt * v[c]
                                     : op.strength * activate(Activation::sigmoid, at(op.beta, s.first + t)[head]) * (v[c] - a * read);
            for (std::int64_t i = 0; i < keys; ++i) {
              double& number = matrix[i * values + c];
              number = a * number + k[i] * added;
              out += number * q[i];
            }
            at(op.out, s.first + t)[head * values + c] = out + value_of(op.skip, head) * v[c];
          }
        }
        for (double* to : saved_after(op.state, s, t)) std::copy(state.begin(), state.end(), to);
      }
    }
  }

  void operator()(const Select& op) {
    for (std::size_t r = 0; r < batch_.selected.size(); ++r) {
      std::copy_n(at(op.in, batch_.selected[r]), op.out.width, at(op.out, static_cast<std::int64_t>(r)));
    }
  }

  void operator()(const Pool& op) {
    for (std::size_t s = 0; s < batch_.segments.size(); ++s) {
      const Segment& segment = batch_.segments[s];
      const std::int32_t first = segment.first, count = segment.rows, prompt = segment.prompt;
      for (std::int64_t c = 0; c < op.out.width; ++c) {
        double sum = 0, weighted = 0, largest = -std::numeric_limits<double>::infinity();
        double weights = 0;
        for (std::int32_t i = prompt; i < count; ++i) {
          const double x = at(op.in, first + i)[c];
          sum += x;
          weights += i + 1;
          weighted += (i + 1) * x;
          largest = std::max(largest, x);
        }
        const double n = count - prompt;
        at(op.out, static_cast<std::int64_t>(s))[c] = [&] {
          switch (op.kind) {
            case PoolKind::mean:
              return sum / n;
            case PoolKind::cls:
              return at(op.in, first + prompt)[c];
            case PoolKind::last:
              return at(op.in, first + count - 1)[c];
            case PoolKind::max:
              return largest;
            case PoolKind::mean_sqrt_len:
              return sum / std::sqrt(n);
            case PoolKind::weighted_mean:
              return weighted / weights;
          }
          fail(ErrorKind::invalid_argument, "reference: pooling ", static_cast<int>(op.kind));
        }();
      }
    }
  }

  void operator()(const LogProb& op) {
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      const double* logits = at(op.logits, r);
      const double largest = *std::max_element(logits, logits + op.logits.width);
      double sum = 0;
      for (std::int64_t c = 0; c < op.logits.width; ++c) sum += std::exp(logits[c] - largest);
      require(id(r) >= 0 && id(r) < op.logits.width, "reference: target ", id(r), " of ", op.logits.width, " logits");
      *at(op.out, r) = logits[id(r)] - largest - std::log(sum);
    }
  }

  void operator()(const Top& op) {
    for (std::int64_t r = 0; r < rows(op.out); ++r) {
      const double* logits = at(op.logits, r);
      double* out = at(op.out, r);
      const auto integer = [](std::int64_t word) { return static_cast<double>(std::bit_cast<float>(static_cast<std::int32_t>(word))); };
      std::vector<std::int64_t> ids(static_cast<std::size_t>(op.logits.width));
      std::iota(ids.begin(), ids.end(), 0);
      const std::int64_t bad = std::find_if(logits, logits + op.logits.width, [](double x) { return !std::isfinite(x); }) - logits;
      const bool finite = bad == op.logits.width;
      out[0] = integer(std::count_if(logits, logits + op.logits.width, [](double x) { return !std::isfinite(x); }));
      out[1] = integer(finite ? -1 : bad);
      out[2] = finite ? 0 : logits[bad];
      if (!batch_.reported_first.empty()) {
        double* reported = out + kTopHead + 2 * op.k;
        for (std::int32_t m = batch_.reported_first[r]; m < batch_.reported_first[r + 1]; ++m) {
          const std::int32_t id = batch_.reported[static_cast<std::size_t>(m)];
          *reported++ = logits[id];
          std::erase(ids, id);
        }
      }
      const std::int32_t mask = batch_.allowed_first.empty() ? -1 : batch_.allowed_first[static_cast<std::size_t>(r)];
      if (mask >= 0)
        std::erase_if(ids,
                      [&](std::int64_t id) { return (batch_.allowed[static_cast<std::size_t>(mask + id / 32)] >> (id % 32) & 1u) == 0; });
      if (!finite) continue;
      std::stable_sort(ids.begin(), ids.end(), [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
      const std::int64_t count = std::min<std::int64_t>(op.k, static_cast<std::int64_t>(ids.size()));
      out[3] = integer(count);
      for (std::int64_t i = 0; i < op.k; ++i) {
        out[kTopHead + i] = i < count ? logits[ids[static_cast<std::size_t>(i)]] : std::numeric_limits<float>::lowest();
        out[kTopHead + op.k + i] = integer(i < count ? ids[static_cast<std::size_t>(i)] : -1);
      }
    }
  }

 private:
  std::int64_t rows(Rows kind) const {
    switch (kind) {
      case Rows::tokens:
        return batch_.rows;
      case Rows::segments:
        return static_cast<std::int64_t>(batch_.segments.size());
      case Rows::selected:
        return static_cast<std::int64_t>(batch_.selected.size());
    }
    fail(ErrorKind::invalid_argument, "reference: rows ", static_cast<int>(kind));
  }
  std::int64_t rows(const View& view) const { return rows(program_.slots.at(static_cast<std::size_t>(view.slot)).rows); }

  double* at(const View& view, std::int64_t row) {
    const std::int64_t width = program_.slots.at(static_cast<std::size_t>(view.slot)).width;
    require(view.col >= 0 && view.col + view.width <= width && row >= 0 && row < rows(view), "reference: row ", row, ", columns ", view.col,
            " to ", view.col + view.width, " of slot ", view.slot, " with ", rows(view), " x ", width);
    return slots_[static_cast<std::size_t>(view.slot)].data() + row * width + view.col;
  }

  std::int32_t id(std::int64_t row) const {
    require(static_cast<std::size_t>(row) < batch_.ids.size(), "reference: the batch has ids for ", batch_.ids.size(), " rows only");
    return batch_.ids[static_cast<std::size_t>(row)];
  }
  std::int64_t position(std::int64_t row) const {
    require(!positions_.empty(), "reference: positions need segments");
    return positions_[static_cast<std::size_t>(row)];
  }
  static const double* checked_row(const DoubleMatrix& matrix, std::int64_t row) {
    require(row >= 0 && row < matrix.rows, "reference: row ", row, " of ", matrix.name, ", which has ", matrix.rows);
    return matrix.row(row);
  }
  static const DoubleMatrix& checked_cols(const DoubleMatrix& matrix, std::int64_t cols) {
    require(matrix.cols == cols, "reference: ", matrix.name, " takes ", matrix.cols, " columns, the view has ", cols);
    return matrix;
  }
  static void add(const double* x, std::int64_t n, double* out) {
    for (std::int64_t i = 0; i < n; ++i) out[i] += x[i];
  }

  double value_of(VectorId id, std::int64_t at) const { return id == VectorId::none ? 0 : weights_[id].at(static_cast<std::size_t>(at)); }
  const double* values_of(VectorId id) const { return id == VectorId::none ? nullptr : weights_[id].data(); }
  static double capped(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

  // Returns the frequency of pair j for a text of `length` tokens.
  static double frequency(const RopeTable& rope, std::size_t j, std::int64_t length) {
    if (rope.original == 0 || length <= rope.original) return rope.inv_freq[j];
    if (!rope.long_inv_freq.empty()) return rope.long_inv_freq[j];
    const double dims = 2.0 * static_cast<double>(rope.inv_freq.size()), growth = rope.growth;
    const double stretch = growth * static_cast<double>(length) / static_cast<double>(rope.original) - (growth - 1);
    return std::pow(rope.base * std::pow(stretch, dims / (dims - 2)), -2.0 * static_cast<double>(j) / dims);
  }
  static void turn(double* head, const RopeTable& rope, std::int64_t position, std::int64_t length) {
    const std::size_t pairs = rope.inv_freq.size();
    for (std::size_t j = 0; j < pairs; ++j) {
      const double angle = static_cast<double>(position) * frequency(rope, j, length);
      const double cos = rope.magnitude * std::cos(angle), sin = rope.magnitude * std::sin(angle);
      double &a = head[rope.interleaved ? 2 * j : j], &b = head[rope.interleaved ? 2 * j + 1 : j + pairs];
      std::tie(a, b) = std::pair(a * cos - b * sin, a * sin + b * cos);
    }
  }

  std::vector<double>& state(std::int32_t number, StateId id) {
    require(caches_ != nullptr, "reference: the program needs states");
    return caches_->states.at(static_cast<std::size_t>(number)).at(static_cast<std::size_t>(id));
  }
  const double* state_before(StateId id, const Segment& segment) {
    return id == StateId::none || segment.state < 0 ? nullptr : state(segment.state, id).data();
  }
  // Returns where the state after the segment's row t is written.
  std::vector<double*> saved_after(StateId id, const Segment& segment, std::int64_t t) {
    std::vector<double*> all;
    for (const SavedState& saved : segment.saves)
      if (id != StateId::none && saved.rows == t + 1) all.push_back(state(saved.state, id).data());
    return all;
  }

  DoubleCaches::Cache& cache(CacheId id) {
    require(caches_ != nullptr, "reference: the program needs caches");
    return caches_->caches.at(static_cast<std::size_t>(id));
  }
  // Returns the address of the numbers that a cache half holds for a position.
  static double* kept(const DoubleCaches::Cache::Half& half, const Segment& segment, std::int64_t position) {
    const auto page = static_cast<std::size_t>(position / kPageTokens);
    require(page < segment.pages.size(), "reference: position ", position, " needs page ", page, " of ", segment.pages.size());
    const std::int64_t at = (static_cast<std::int64_t>(segment.pages[page]) * kPageTokens + position % kPageTokens) * half.width;
    require(at >= 0 && at < static_cast<std::int64_t>(half.numbers.size()), "reference: page ", segment.pages[page], " is not reserved");
    return half.numbers.data() + at;
  }

  const Program& program_;
  const DoubleWeights& weights_;
  DoubleCaches* caches_;
  const Batch& batch_;
  std::vector<std::vector<double>> slots_;
  // By row: its position, the position for Rope, and the text length that sets its Rope frequencies.
  std::vector<std::int64_t> positions_, turned_, lengths_;
};

struct NoWorkspace : Workspace {};

struct Interpreter : Executable {
  Program program;
  std::shared_ptr<const DoubleWeights> weights;

  void run(Workspace&, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override {
    Run run(program, *weights, dynamic_cast<DoubleCaches*>(caches), batch);
    if (program.input >= 0) run.fill(io.in);
    for (const Op& op : program.ops) {
      cancel.check();
      std::visit(run, op);
    }
    if (program.output >= 0) run.drain(io.out);
  }
};

}  // namespace

DeviceInfo ReferenceBackend::info() const {
  return {.id = id_, .name = "double precision, for tests", .type = DeviceType::cpu, .driver = "scalar"};
}

std::shared_ptr<const DeviceWeights> ReferenceBackend::pack(const Weights& weights, std::span<const Program* const> programs,
                                                            const Progress& progress, const Cancel& cancel, std::uint64_t expert_bytes) {
  require(expert_bytes == kAllExperts, "the reference keeps all experts in memory");
  auto loaded = std::make_shared<DoubleWeights>();
  const std::vector<bool> used = used_matrices(programs, shapes_of(weights));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < weights.matrices.size(); ++i) {
    const Matrix& m = weights.matrices[i];
    DoubleMatrix& to = loaded->matrices.emplace_back(DoubleMatrix{m.name, m.rows, m.cols, m.experts, {}});
    if (!used[i]) continue;
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(m.format, m.cols)));
    std::vector<float> row(static_cast<std::size_t>(m.cols));
    to.values.reserve(static_cast<std::size_t>(m.rows * m.cols));
    for (std::int64_t r = 0; r < m.rows; ++r) {
      cancel.check();
      m.read(r, 1, packed.data());
      unpack(m.format, packed.data(), m.cols, row.data());
      to.values.insert(to.values.end(), row.begin(), row.end());
    }
    bytes += packed.size() * static_cast<std::uint64_t>(m.rows);
    if (progress) progress(bytes);
  }
  for (const Vector& v : weights.vectors) loaded->vectors.emplace_back(v.values.begin(), v.values.end());
  return loaded;
}

std::unique_ptr<CacheStore> ReferenceBackend::make_caches(const Program& program, KvFormat) {
  auto store = std::make_unique<DoubleCaches>();
  for (const CacheShape& shape : program.caches) store->caches.push_back({shape, {}, {}});
  store->shapes = program.states;
  return store;
}

std::shared_ptr<const Executable> ReferenceBackend::prepare(Program program, std::shared_ptr<const DeviceWeights> weights, Compute,
                                                            const Cancel&) {
  auto executable = std::make_shared<Interpreter>();
  executable->program = std::move(program);
  executable->weights = std::dynamic_pointer_cast<const DoubleWeights>(weights);
  require(executable->weights != nullptr, "reference: the weights belong to another device");
  return executable;
}

std::unique_ptr<Workspace> ReferenceBackend::make_workspace(Crew) { return std::make_unique<NoWorkspace>(); }

Cost ReferenceBackend::cost(const Program& program, const WeightShapes& weights, KvFormat, std::int64_t rows) const {
  Cost cost;
  for (const MatrixShape& m : weights.matrices) cost.weights += static_cast<std::uint64_t>(m.rows * m.cols) * sizeof(double);
  for (const CacheShape& c : program.caches) {
    cost.page += static_cast<std::uint64_t>(kPageTokens) * static_cast<std::uint64_t>(c.heads * (c.key_dim + c.value_dim)) * sizeof(double);
  }
  for (const StateShape& s : program.states) cost.state += static_cast<std::uint64_t>(DoubleCaches::numbers_of(s)) * sizeof(double);
  for (const SlotShape& s : program.slots) cost.scratch += static_cast<std::uint64_t>(rows * s.width) * sizeof(double);
  return cost;
}

void ReferenceBackend::parallel(std::int64_t jobs, const std::function<void(std::int64_t index, int worker)>& job, const Cancel& cancel) {
  for (std::int64_t i = 0; i < jobs; ++i) {
    cancel.check();
    job(i, static_cast<int>(i % workers_));
  }
}

}  // namespace pumice::reference
