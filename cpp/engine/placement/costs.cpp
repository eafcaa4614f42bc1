#include "engine/placement/costs.h"

#include <algorithm>
#include <utility>

#include "core/checked.h"
#include "core/program_cut.h"
#include "engine/runtime.h"

namespace pumice::engine {

using model::ModelProgram;
using model::Output;
using model::Role;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::uint64_t usable(const Place& place) {
  const std::uint64_t free = place.info.memory_free;
  return place.in_host_memory ? free : free - std::min(free / 16, 512 * kMiB);
}

}  // namespace

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) fail(ErrorKind::out_of_memory, "the model takes more bytes than can be addressed");
  return *sum;
}

Cost both(const Cost& a, const Cost& b) {
  return {.weights = plus(a.weights, b.weights),
          .page = plus(a.page, b.page),
          .state = plus(a.state, b.state),
          .scratch = std::max(a.scratch, b.scratch),
          .experts = plus(a.experts, b.experts),
          .experts_least = std::max(a.experts_least, b.experts_least)};
}

std::uint64_t pages_for(std::int64_t positions) { return static_cast<std::uint64_t>(ceil_div(positions, kPageTokens)); }

std::string mib(std::uint64_t bytes) {
  return bytes < 10 * kMiB ? str((bytes + 1023) / 1024, " KiB") : str((bytes + kMiB - 1) / kMiB, " MiB");
}

Place::Place(std::shared_ptr<Backend> device)
    : backend(std::move(device)),
      info(backend->info()),
      is_cpu(info.type == DeviceType::cpu),
      in_host_memory(is_cpu || info.type == DeviceType::integrated || info.type == DeviceType::software),
      free(usable(*this)) {}

Costs::Costs(const model::ModelPrograms& programs, const LoadOptions& options, const std::vector<std::shared_ptr<Backend>>& devices)
    : programs_(programs),
      d_(programs.description()),
      options_(options),
      layers_(d_.config.layers.size()),
      ends_(model::ends_of(d_)),
      generates_(d_.config.has_head),
      tied_(generates_ && d_.global(Role::head).matrix == d_.global(Role::token_embedding).matrix),
      encodes_first_(!generates_ || !options.pooling.empty() || d_.config.pooling),
      places_(devices.begin(), devices.end()),
      rows_(kPlannedRows) {
  // A device that uses the machine's memory can use no more of that memory than the CPU, whose backend knows the limits of this process.
  for (Place& place : places_)
    if (place.in_host_memory && places_.front().is_cpu) place.free = std::min(place.free, places_.front().free);
  // Scratch must suffice for the batches of encode(). A batch is as large as the largest batch_rows() of all devices, even on devices with
  // a smaller batch_rows().
  for (const Place& place : places_)
    if (encodes_first_) rows_ = std::max(rows_, place.backend->batch_rows());
  shares_.assign(layers_, std::vector<bool>(layers_));
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const std::vector<bool>& mine = program(layer).matrices;
    for (std::size_t other = 0; other < layer; ++other) {
      const std::vector<bool>& others = program(other).matrices;
      bool all = true;
      for (std::size_t m = 0; all && m < mine.size(); ++m) all = !mine[m] || others[m];
      shares_[layer][other] = all;
    }
  }
  for (const Place& place : places_) measured_.push_back(measure(place));
}

bool Costs::has_experts() const {
  return std::ranges::any_of(d_.config.layers, [](const model::Layer& layer) { return layer.if_mixture() != nullptr; });
}

bool Costs::can_part_experts() const {
  return std::ranges::none_of(measured_, [](const Measured& m) { return m.experts.empty(); });
}

Costs::Measured Costs::measure(const Place& place) const {
  Measured m;
  const auto cost = [&](const ModelProgram& p) { return place.backend->cost(p.program, programs_.shapes(), options_.kv_format, rows_); };
  m.embedding = cost(embedding());
  for (std::size_t l = 0; l < layers_; ++l) m.layers.push_back(cost(program(l)));
  const auto behind_layers = [&](Output output) {
    Cost end = cost(this->end(output));
    end.weights = less(end.weights, m.layers.back().weights);
    end.page = end.state = 0;
    return end;
  };
  for (const model::EndOutput& each : ends_) {
    m.ends.push_back(behind_layers(each.output));
    // Adds scratch for the output rows of sparse vectors. cost() has counted the row of only one text, but a micro-batch may have up to
    // kMostPooled values in its output rows.
    std::uint64_t& scratch = m.ends.back().scratch;
    if (each.output == Output::sparse) scratch = plus(scratch, kMostPooled * sizeof(float));
  }
  if (has_experts()) measure_experts(place, m);
  // Subtracts the weights of the embedding from layer 0, because the program of layer 0 includes them, but m.embedding counts them already.
  for (std::vector<Cost>* layers : {&m.layers, &m.others})
    if (!layers->empty()) layers->front().weights = less(layers->front().weights, m.embedding.weights);
  if (generates_) measure_head(place, m);
  for (std::size_t i = 0; i < d_.sides.size(); ++i) m.sides.push_back(measure_side(place, m, i));
  return m;
}

void Costs::measure_experts(const Place& place, Measured& m) const {
  m.experts.resize(layers_);
  m.others.resize(layers_);
  const auto is_experts = [](const Op& op) { return std::holds_alternative<Experts>(op); };
  try {
    // This call is only a check: cut_program() throws if two layers share a cache.
    cut_program(programs_.body(0, layers_, Output::hidden).program, programs_.shapes(), is_experts);
    for (std::size_t l = 0; l < layers_; ++l) {
      for (const ProgramPart& part : cut_program(program(l).program, programs_.shapes(), is_experts)) {
        Cost& sum = (part.apart ? m.experts : m.others)[l];
        sum = both(sum, place.backend->cost(part.program, programs_.shapes(), options_.kv_format, rows_));
      }
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported_model) throw;
    m.experts.clear();
    m.others.clear();
  }
}

// Measures the head. Its programs share weights and one workspace, so its scratch is the largest scratch of these programs.
void Costs::measure_head(const Place& place, Measured& m) const {
  const auto cost = [&](const ModelProgram& p) {
    return place.backend->cost(p.program, programs_.shapes(), options_.kv_format, head_rows(d_.vocab_size));
  };
  m.head = cost(programs_.head());
  m.head.scratch = std::max(m.head.scratch, cost(programs_.log_probs()).scratch);
  if (!options_.sketch && place.is_cpu) return;
  const MatrixShape& head = programs_.shapes().matrices[static_cast<std::size_t>(d_.global(Role::head).matrix)];
  m.ranks = std::min(place.backend->ranks(head, step_bytes()), model::kTopLogits);
  if (m.ranks == 0) return;
  const Cost top = cost(programs_.top());
  m.sketch.weights = less(top.weights, m.head.weights);
  m.head.scratch = std::max(m.head.scratch, top.scratch);
}

// Returns how many bytes of weights a step of one row reads, in the formats of the file. In a mixture, only the chosen experts count.
std::uint64_t Costs::step_bytes() const {
  const ModelProgram& body = programs_.body(0, layers_, Output::selected);
  std::vector<bool> read = body.matrices;
  std::vector<std::int32_t> chosen(read.size());
  for (const Op& op : body.program.ops) {
    const auto each = [](std::initializer_list<MatrixId> ids, const auto& set) {
      for (const MatrixId id : ids)
        if (id != MatrixId::none) set(static_cast<std::size_t>(id));
    };
    if (const auto* embed = std::get_if<Embed>(&op))
      each({embed->tokens, embed->positions, embed->types}, [&](std::size_t id) { read[id] = false; });
    if (const auto* experts = std::get_if<Experts>(&op))
      each({experts->gate, experts->up, experts->down}, [&](std::size_t id) { chosen[id] = experts->route.width / 2; });
  }
  read[static_cast<std::size_t>(d_.global(Role::head).matrix)] = true;
  std::uint64_t sum = 0;
  for (std::size_t m = 0; m < read.size(); ++m) {
    const MatrixShape& matrix = programs_.shapes().matrices[m];
    const std::int64_t rows = chosen[m] > 0 ? matrix.rows_each() * chosen[m] : matrix.rows;
    if (read[m])
      sum = plus(sum, mul_or_fail<std::uint64_t>(static_cast<std::uint64_t>(rows),
                                                 static_cast<std::uint64_t>(row_bytes(matrix.format, matrix.cols)), "a step's weights"));
  }
  return sum;
}

// Returns true if a side part (a draft head or an assistant) computes logits with a matrix that the model's own head does not have.
bool Costs::has_own_head(std::size_t side) const {
  const std::vector<bool>&own = programs_.side_logits(side).matrices, &head = programs_.head().matrices;
  for (std::size_t m = 0; m < own.size(); ++m)
    if (own[m] && !head[m]) return true;
  return false;
}

// Returns the cost of a side part (a draft head or an assistant). Cost::page and Cost::state are the bytes that the last stage stores in
// addition, for this part. These are the part's own keys and values, or those of earlier layers that the part attends to.
Cost Costs::measure_side(const Place& place, const Measured& m, std::size_t side) const {
  const auto cost = [&](const ModelProgram& p, std::int64_t rows) {
    return place.backend->cost(p.program, programs_.shapes(), options_.kv_format, rows);
  };
  const Cost last = cost(end(Output::selected), rows_);
  Cost sum = cost(programs_.side(side, layers_ - 1, false), kGuessedRows);  // its weights include those of `first`
  const Cost first = cost(programs_.side(side, layers_ - 1, true), kGuessedRows);
  const Cost logits = cost(programs_.side_logits(side), head_rows(d_.vocab_size));
  sum.scratch = std::max({sum.scratch, first.scratch, last.scratch, logits.scratch});
  if (has_own_head(side)) sum.weights = plus(sum.weights, logits.weights);
  sum.page = less(last.page, m.layers.back().page);
  sum.state = less(last.state, m.layers.back().state);
  return sum;
}

// Returns the cost of a side part in a stage that begins with layer `first`. The part uses the embedding's matrix, and needs a copy of it
// if the stage has neither the embedding nor a head with the same matrix. The part may attend to keys and values of the model's layers,
// which cost nothing if a layer of the stage stores them anyway.
Cost Costs::side(std::size_t place, std::size_t first, std::size_t side) const {
  const Measured& m = measured_[place];
  Cost cost = m.sides[side];
  if (tied_ || first == 0) cost.weights = less(cost.weights, m.embedding.weights);
  for (const std::size_t source : d_.sides[side].reads) {
    if (d_.config.cache_of(layers_ - 1) == source) continue;
    for (std::size_t l = first; l + 1 < layers_; ++l) {
      if (d_.config.cache_of(l) != source) continue;
      cost.page = less(cost.page, m.layers[source].page);
      break;
    }
  }
  return cost;
}

std::vector<bool> Costs::side_matrices(std::size_t side) const {
  std::vector<bool> used = programs_.side(side, layers_ - 1, false).matrices;
  const std::vector<bool>& of_logits = programs_.side_logits(side).matrices;
  if (has_own_head(side))
    for (std::size_t m = 0; m < used.size(); ++m) used[m] = used[m] || of_logits[m];
  return used;
}

// Returns the cost of a layer in a stage that begins with layer `first`. If several layers of the stage use the same weights or the same
// keys and values, only the first of them counts these bytes.
Cost Costs::layer(std::size_t place, std::size_t first, std::size_t layer, std::size_t away) const {
  const Measured& m = measured_[place];
  Cost cost = layer < first + away ? m.others[layer] : m.layers[layer];
  const std::size_t loop = d_.config.layers_in_file();  // layers l and l + loop use the same weights
  if (layer > first && (shares_[layer][first] || layer >= first + loop)) cost.weights = 0;
  for (std::size_t l = first; l < layer; ++l) {
    if (d_.config.cache_of(l) == d_.config.cache_of(layer)) cost.page = 0;
  }
  return cost;
}

const Cost& Costs::stage(std::size_t place, std::size_t first, std::size_t last, std::size_t away) const {
  const auto [known, is_new] = stages_.try_emplace({place, first, last, away});
  Cost& sum = known->second;
  if (!is_new || first == last) return sum;
  if (first == 0) sum = measured_[place].embedding;
  for (std::size_t l = first; l < last; ++l) sum = both(sum, layer(place, first, l, away));
  if (last == layers_)
    for (const End& end : ends(place, first, away)) sum = both(sum, end.cost);
  return sum;
}

std::vector<End> Costs::ends(std::size_t place, std::size_t first, std::size_t away) const {
  const Measured& m = measured_[place];
  std::vector<End> ends;
  if (generates_) {
    Cost head = m.head;
    if (tied_ && first == 0) head.weights = less(head.weights, m.embedding.weights);
    ends.push_back({tied_ ? "head (the embedding)" : "head", head, programs_.head().matrices});
  }
  if (m.sketch.weights > 0) ends.push_back({"sketch of the head", m.sketch, {}});
  for (std::size_t i = 0; i < d_.sides.size(); ++i)
    if (runs(d_.sides[i], away)) ends.push_back({std::string(d_.sides[i].name().name), side(place, first, i), side_matrices(i)});
  for (std::size_t i = 0; i < ends_.size(); ++i) ends.push_back({std::string(ends_[i].name), m.ends[i], end(ends_[i].output).matrices});
  return ends;
}

}  // namespace pumice::engine
