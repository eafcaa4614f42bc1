#include "cpu/expert_cache.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "cpu/scratch.h"

namespace pumice::cpu {
namespace {

// ExpertCache counts for each expert how many steps of the layer chose it (Layer::chosen). At each new step of the layer, the counts so far
// are multiplied by this factor, so that older steps count less.
constexpr float kFade = 0.98f;

// The layout of a unit, which holds all matrices of one expert in the cache. `bytes` is the size of the unit, and at[i] is the offset of
// matrix i in the unit.
struct UnitShape {
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> at;
  std::int32_t experts = 0;
};

UnitShape unit_of(const ExpertLayer& layer, const WeightShapes& weights) {
  UnitShape unit;
  for (const std::size_t m : layer.matrices) {
    const MatrixShape& matrix = weights.matrices[m];
    unit.at.push_back(unit.bytes);
    unit.experts = matrix.experts;
    const auto sum = checked_add(unit.bytes, align_line(packed_bytes(matrix) / static_cast<std::uint64_t>(matrix.experts)));
    if (!sum) fail(ErrorKind::out_of_memory, "experts: more bytes than can be addressed");
    unit.bytes = *sum;
  }
  return unit;
}

// All experts of one size, in all layers.
struct SizeClass {
  // `all` is the number of bytes of these experts in all layers together. `least` is their number of bytes in the layer that has the most.
  std::uint64_t all = 0, least = 0;
};
std::map<std::uint64_t, SizeClass> size_classes(std::span<const ExpertLayer> layers, const WeightShapes& weights) {
  std::map<std::uint64_t, SizeClass> classes;
  for (const ExpertLayer& layer : layers) {
    const UnitShape unit = unit_of(layer, weights);
    SizeClass& c = classes[unit.bytes];
    const auto bytes = mul_or_fail<std::uint64_t>(unit.bytes, static_cast<std::uint64_t>(unit.experts), "experts");
    const auto sum = checked_add(c.all, bytes);
    if (!sum) fail(ErrorKind::out_of_memory, "experts: more bytes than can be addressed");
    c = {.all = *sum, .least = std::max(c.least, bytes)};
  }
  return classes;
}

ExpertBytes total_of(const std::map<std::uint64_t, SizeClass>& classes) {
  ExpertBytes total;
  for (const auto& [unit, c] : classes) {
    const auto all = checked_add(total.all, c.all);
    if (!all) fail(ErrorKind::out_of_memory, "experts: more bytes than can be addressed");
    total = {.all = *all, .least = total.least + c.least};
  }
  return total;
}

}  // namespace

std::vector<ExpertLayer> expert_layers(std::span<const Program* const> programs) {
  std::vector<ExpertLayer> layers;
  for (const Program* program : programs) {
    for (const Op& op : program->ops) {
      const auto* experts = std::get_if<Experts>(&op);
      if (!experts) continue;
      ExpertLayer layer;
      for (const MatrixId id : {experts->gate, experts->up, experts->down})
        if (id != MatrixId::none) layer.matrices.push_back(static_cast<std::size_t>(id));
      if (std::ranges::find(layers, layer) == layers.end()) layers.push_back(std::move(layer));
    }
  }
  std::map<std::size_t, int> users;
  for (const ExpertLayer& layer : layers)
    for (const std::size_t m : layer.matrices) ++users[m];
  std::erase_if(layers,
                [&](const ExpertLayer& layer) { return std::ranges::any_of(layer.matrices, [&](std::size_t m) { return users[m] > 1; }); });
  return layers;
}

ExpertBytes expert_bytes(std::span<const ExpertLayer> layers, const WeightShapes& weights) {
  return total_of(size_classes(layers, weights));
}

// ---------------------------------------------------------------- the cache
ExpertCache::ExpertCache(std::vector<ExpertLayer> layers, std::vector<Matrix> sources, std::vector<PackedMatrix>& matrices,
                         std::uint64_t bytes, int threads)
    : sources_(std::move(sources)), matrices_(matrices), buffers_(static_cast<std::size_t>(threads)) {
  WeightShapes shapes;
  for (const Matrix& source : sources_) shapes.matrices.push_back(shape_of(source));
  const auto classes = size_classes(layers, shapes);
  const ExpertBytes total = total_of(classes);
  if (bytes < total.least) {
    fail(ErrorKind::out_of_memory, "a cache of ", bytes, " bytes for experts is too small: the experts of one layer take ", total.least,
         " bytes");
  }
  // Each pool gets the number of bytes that it needs at least (SizeClass::least), and a part of the remaining bytes.
  std::map<std::uint64_t, std::uint64_t> taken;
  std::uint64_t needed = 0;
  const double rest = static_cast<double>(bytes - total.least) / static_cast<double>(std::max<std::uint64_t>(1, total.all - total.least));
  for (const auto& [unit, c] : classes) {
    const auto more = static_cast<std::uint64_t>(static_cast<double>(c.all - c.least) * std::min(1.0, rest)) / unit * unit;
    needed += taken[unit] = c.least + std::min(more, c.all - c.least);
  }
  check_memory(needed, "experts");
  arena_ = Buffer(needed, "experts");
  std::map<std::uint64_t, std::size_t> pool_of;
  std::uint8_t* at = arena_.data();
  for (const auto& [unit, pool_bytes] : taken) {
    pool_of[unit] = pools_.size();
    pools_.push_back({.unit_bytes = unit, .data = at, .places = std::vector<Place>(pool_bytes / unit)});
    at += pool_bytes;
  }
  layers_.resize(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const UnitShape unit = unit_of(layers[l], shapes);
    const auto experts = static_cast<std::size_t>(unit.experts);
    Layer& layer = layers_[l];
    layer.matrices = std::move(layers[l]);
    layer.pool = pool_of[unit.bytes];
    layer.at = unit.at;
    layer.units.assign(experts, nullptr);
    layer.places.assign(experts, -1);
    layer.chosen.assign(experts, 0.0f);
    for (std::size_t i = 0; i < layer.matrices.matrices.size(); ++i) {
      PackedMatrix& matrix = matrices_[layer.matrices.matrices[i]];
      matrix.cached_layer = static_cast<std::int32_t>(l);
      matrix.cached = layer.units.data();
      matrix.cached_at = static_cast<std::int64_t>(unit.at[i]);
    }
  }
}

void ExpertCache::add_panels_of(std::size_t layer, std::int32_t expert, std::vector<Panel>& panels) const {
  for (const std::size_t m : layers_[layer].matrices.matrices) add_panels(panels, m, matrices_[m], expert);
}

std::uint8_t* ExpertCache::unit(std::size_t layer, std::int32_t expert) {
  Pool& pool = pools_[layers_[layer].pool];
  return pool.data + static_cast<std::uint64_t>(layers_[layer].places[static_cast<std::size_t>(expert)]) * pool.unit_bytes;
}

void ExpertCache::read(const Panel& panel, std::size_t layer, int thread) {
  const PackedMatrix& matrix = matrices_[panel.matrix];
  PanelPacker(sources_[panel.matrix], matrix, buffers_[static_cast<std::size_t>(thread)])
      .pack(panel, unit(layer, panel.expert) + matrix.cached_at);
}

void ExpertCache::fill(const Parallel& parallel, const std::function<void(std::uint64_t bytes)>& done) {
  std::vector<Panel> panels;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    Pool& pool = pools_[layer.pool];
    panels.clear();
    for (std::int32_t e = 0; e < static_cast<std::int32_t>(layer.units.size()); ++e) {
      const bool room = std::ranges::any_of(pool.places, [](const Place& place) { return place.layer < 0; });
      if (room) take_places(l, {&e, 1});
      add_panels_of(l, e, panels);
    }
    parallel(static_cast<std::int64_t>(panels.size()), [&](std::int64_t i, int thread) {
      const Panel& panel = panels[static_cast<std::size_t>(i)];
      if (layer.units[static_cast<std::size_t>(panel.expert)]) {
        read(panel, l, thread);
      } else {
        PanelPacker(sources_[panel.matrix], matrices_[panel.matrix], buffers_[static_cast<std::size_t>(thread)]).check(panel);
      }
      done(static_cast<std::uint64_t>(panel.bytes));
    });
  }
  for (Pool& pool : pools_)
    for (Place& place : pool.places) place.whole = place.layer >= 0;
}

// Returns the fraction of the layer's recent steps that chose the expert, where older steps count less (kFade). The result is exactly 1 for
// every expert that all steps chose, so that such experts compare as equal.
float ExpertCache::share(const Place& place) const {
  const Layer& layer = layers_[static_cast<std::size_t>(place.layer)];
  return layer.steps == 0 ? 0 : layer.chosen[static_cast<std::size_t>(place.expert)] / layer.steps;
}

void ExpertCache::free_place(Place& place) {
  if (place.layer < 0) return;
  place.whole = false;
  Layer& layer = layers_[static_cast<std::size_t>(place.layer)];
  layer.units[static_cast<std::size_t>(place.expert)] = nullptr;
  layer.places[static_cast<std::size_t>(place.expert)] = -1;
  place = Place{};
}

void ExpertCache::take_places(std::size_t l, std::span<const std::int32_t> experts) {
  Layer& layer = layers_[l];
  Pool& pool = pools_[layer.pool];
  struct Candidate {
    float share;  // ExpertCache::share(), or -1 if the place is free
    std::uint64_t pass;
    std::int32_t place;
  };
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < pool.places.size(); ++i) {
    const Place& place = pool.places[i];
    if (place.layer < 0) {
      candidates.push_back({-1, 0, static_cast<std::int32_t>(i)});
    } else if (place.pass != passes_) {
      candidates.push_back({share(place), place.pass, static_cast<std::int32_t>(i)});
    }
  }
  require(candidates.size() >= experts.size(), "experts: ", experts.size(), " do not find a place");
  const auto sooner = [](const Candidate& a, const Candidate& b) { return a.share != b.share ? a.share < b.share : a.pass > b.pass; };
  std::ranges::partial_sort(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(experts.size()), sooner);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const std::int32_t index = candidates[i].place;
    Place& place = pool.places[static_cast<std::size_t>(index)];
    free_place(place);
    place = {.layer = static_cast<std::int32_t>(l), .expert = experts[i], .whole = false, .pass = passes_};
    layer.places[static_cast<std::size_t>(experts[i])] = index;
    layer.units[static_cast<std::size_t>(experts[i])] = pool.data + static_cast<std::uint64_t>(index) * pool.unit_bytes;
  }
}

void ExpertCache::forget_unfinished() {
  for (Layer& layer : layers_) {
    std::ranges::fill(layer.units, nullptr);
    std::ranges::fill(layer.places, -1);
  }
  for (Pool& pool : pools_) {
    for (std::size_t i = 0; i < pool.places.size(); ++i) {
      Place& place = pool.places[i];
      if (!place.whole) place = Place{};
      if (place.layer < 0) continue;
      Layer& layer = layers_[static_cast<std::size_t>(place.layer)];
      layer.places[static_cast<std::size_t>(place.expert)] = static_cast<std::int32_t>(i);
      layer.units[static_cast<std::size_t>(place.expert)] = pool.data + i * pool.unit_bytes;
    }
  }
}

void ExpertCache::take_over() {
  forget_unfinished();
  const std::size_t threads = buffers_.size();
  static_cast<void>(new std::vector<PanelBuffers>(std::move(buffers_)));
  buffers_ = std::vector<PanelBuffers>(threads);
}

// ---------------------------------------------------------------- passes
ExpertPass::~ExpertPass() {
  if (!holds_) return;
  if (unfinished_) cache_->forget_unfinished();
  cache_->lock_.unlock();
}

std::int64_t ExpertPass::begin(std::int32_t layer, std::span<const std::int32_t> experts) {
  require(cache_ != nullptr && !holds_, "experts: a pass begins twice, or without a cache");
  if (!cache_->lock_.lock()) cache_->take_over();
  holds_ = true;
  layer_ = static_cast<std::size_t>(layer);
  ExpertCache::Layer& of = cache_->layers_[layer_];
  ExpertCache::Pool& pool = cache_->pools_[of.pool];
  const std::uint64_t pass = ++cache_->passes_;
  // Values below 1e-20 become 0, because denormal numbers are slow.
  for (float& chosen : of.chosen) chosen = chosen < 1e-20f ? 0 : chosen * kFade;
  of.steps = of.steps * kFade + 1;
  panels_.clear();
  // Marks the experts that are already in the cache as needed by this pass, so that take_places() does not replace any of them.
  std::vector<std::int32_t> missing;
  std::vector<bool> seen(of.units.size());
  for (const std::int32_t e : experts) {
    const auto at = static_cast<std::size_t>(e);
    if (seen[at]) continue;
    seen[at] = true;
    of.chosen[at] += 1;
    if (of.places[at] < 0) {
      missing.push_back(e);
    } else {
      pool.places[static_cast<std::size_t>(of.places[at])].pass = pass;
      ++cache_->hits_;
    }
  }
  unfinished_ = !missing.empty();
  cache_->take_places(layer_, missing);
  for (const std::int32_t e : missing) cache_->add_panels_of(layer_, e, panels_);
  cache_->reads_ += missing.size();
  return static_cast<std::int64_t>(panels_.size());
}

void ExpertPass::read(std::int64_t panel, int thread) {
  try {
    cache_->read(panels_[static_cast<std::size_t>(panel)], layer_, thread);
  } catch (const Error&) {
    // A changed file explains errors such as a NaN among the weights, so the change is reported instead.
    if (cache_->require_unchanged) cache_->require_unchanged();
    throw;
  }
}

void ExpertPass::all_read() {
  if (!unfinished_) return;
  if (cache_->require_unchanged) cache_->require_unchanged();
  for (const Panel& panel : panels_) {
    ExpertCache::Layer& of = cache_->layers_[layer_];
    const std::int32_t place = of.places[static_cast<std::size_t>(panel.expert)];
    cache_->pools_[of.pool].places[static_cast<std::size_t>(place)].whole = true;
  }
  unfinished_ = false;
}

void ExpertPass::end() {
  if (!holds_) return;
  holds_ = false;
  cache_->lock_.unlock();
}

}  // namespace pumice::cpu
