#include "engine/placement/report.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/checked.h"

namespace pumice::engine {
namespace {

std::uint64_t times(std::uint64_t pages, std::uint64_t bytes) { return mul_or_fail<std::uint64_t>(pages, bytes, "keys and values"); }

// Returns the index of the share that lacks the most bytes.
std::size_t most_short(const std::vector<Need>& needs) {
  return static_cast<std::size_t>(std::ranges::max_element(needs, {}, &Need::missing) - needs.begin());
}

std::size_t layers_in(const Split& split) { return split.empty() ? 0 : split.back().last - split.front().first; }

}  // namespace

std::string Report::formats_of(const std::vector<bool>& used) const {
  const std::vector<Matrix>& matrices = costs_.description().weights.matrices;
  std::set<std::string_view> formats;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) formats.insert(name(matrices[i].format));
  }
  std::string text;
  for (const std::string_view format : formats) text += (text.empty() ? "" : ", ") + std::string(format);
  return text;
}

// Returns the devices of a split as a text: "vulkan:0", or "vulkan:0 and vulkan:1".
std::string Report::names(const Split& split) const {
  std::string text;
  for (const Share& share : split)
    text += str(text.empty() ? "" : &share == &split.back() ? " and " : ", ", costs_.places()[share.place].info.id);
  return text;
}

// ---------------------------------------------------------------- devices and rows
void Report::add_device(const Place& place, const Cost& all, std::uint64_t expert_bytes) {
  p_.devices.push_back({.backend = place.backend,
                        .id = place.info.id,
                        .name = place.info.name,
                        .weights = all.weights,
                        .scratch = all.scratch,
                        .kv_page = all.page,
                        .state = all.state,
                        .memory_free = place.info.memory_free,
                        .expert_bytes = expert_bytes,
                        .in_host_memory = place.in_host_memory});
  bounds_.push_back({.name = place.info.id,
                     .kind = place.is_cpu ? ErrorKind::out_of_memory : ErrorKind::out_of_device_memory,
                     .free = place.free,
                     .cost = all});
  if (place.in_host_memory) hosts_.push_back(bounds_.back());
}

void Report::add_row(std::string name, const Cost& cost, const std::vector<bool>& matrices) {
  const PlacedDevice& device = p_.devices.back();
  const bool all_experts = device.expert_bytes == kAllExperts;
  p_.rows.push_back({.name = std::move(name),
                     .device = device.id,
                     .weights = all_experts ? cost.weights : less(cost.weights, cost.experts),
                     .kv = cost.page,
                     .state = cost.state,
                     .formats = formats_of(matrices),
                     .why = {}});
}

// If only some of a device's experts are in memory, adds a row with the bytes of these experts.
void Report::add_expert_row(const PlacedDevice& device) {
  if (device.expert_bytes == kAllExperts) return;
  p_.rows.push_back({.name = "experts in memory", .device = device.id, .weights = device.expert_bytes, .formats = {}, .why = {}});
}

void Report::add_stage(const Share& share) {
  const auto [place, first, last, away] = share;
  p_.stages.push_back({.device = p_.devices.size() - 1, .first = first, .last = last, .away = away});
  if (first == 0) add_row("embedding", costs_.embedding(place), costs_.embedding_matrices());
  for (std::size_t l = first; l < last; ++l) add_row(str("layer ", l), costs_.layer(place, first, l, away), costs_.layer_matrices(l));
  add_expert_row(p_.devices.back());
  if (last != layers_) return;
  for (const End& end : costs_.ends(place, first, away)) add_row(end.name, end.cost, end.matrices);
  p_.ranks = costs_.ranks(place);
  const std::vector<model::SidePart>& sides = costs_.description().sides;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (costs_.runs(sides[i], away)) {
      p_.sides.push_back(i);
      continue;
    }
    const model::SideName& name = sides[i].name();
    p_.why_no_side = str("the experts of some of its layers are on another device, and ", name.one, " then does not run");
    note("the ", name.name, " is not used: ", p_.why_no_side);
  }
}

void Report::add_experts_away(const Split& split) {
  const Place& host = costs_.places()[kHost];
  const bool all_experts = p_.devices.front().expert_bytes == kAllExperts;
  for (const Share& share : split) {
    for (std::size_t l = share.first; l < share.first + share.away; ++l) {
      const std::uint64_t bytes = costs_.experts(kHost, l).weights;
      if (bytes == 0) continue;
      p_.rows.push_back({.name = str("experts of layer ", l),
                         .device = host.info.id,
                         .weights = all_experts ? bytes : 0,
                         .formats = {},
                         .why = options_.gpu_experts ? "gpu_experts" : str("too much for ", costs_.places()[share.place].info.id)});
    }
  }
  if (split.front().first == 0) add_expert_row(p_.devices.front());  // the host runs no layers, so add_stage() has not added this row
}

// ---------------------------------------------------------------- reasons
void Report::too_many(const Fill& fill, const Split& asked, std::size_t most) {
  std::string where;
  const std::vector<Need> needs = fill.needs(asked);
  for (std::size_t i = 0; i < needs.size(); ++i) {
    where += str(i == 0 ? "" : ", and ", needs[i].text(), " on ", costs_.places()[asked[i].place].info.id, ", where ", mib(needs[i].limit),
                 " may be used");
  }
  problem(ErrorKind::out_of_device_memory, layers_in(asked), " of ", layers_, " layers need ", where, ": ", most,
          most == 1 ? " layer" : " layers", " would fit. Give gpu_layers=", most,
          " or \"auto\", a smaller n_ctx or kv_budget, or kv_dtype=\"q8_0\"",
          options_.gpu_experts.value_or(0) != 0 ? ", or a smaller gpu_experts" : "");
}

void Report::not_one(const Fill& fill) {
  const Split one = fill.split(1);
  const Need need = fill.needs(one).front();
  std::string names;
  for (std::size_t i = kHost + 1; i < costs_.places().size(); ++i) names += (names.empty() ? "" : " + ") + costs_.places()[i].info.id;
  const bool several = costs_.places().size() > kHost + 2;
  problem(ErrorKind::out_of_device_memory, names, several ? " hold" : " holds", " not one of the model's ", layers_,
          " layers: the last one needs ", need.text(), ", ", mib(need.limit), " may be used",
          several ? " on " + costs_.places()[one.front().place].info.id : "", ". Take a smaller n_ctx or kv_budget, or device=\"cpu\"");
}

void Report::say_why(const Fill& fill, const Split& split, bool named) {
  const std::size_t border = fill.border(split), count = layers_in(split);
  if (border == 0) return;
  std::size_t layer = 0;
  for (PlacementRow& row : p_.rows) {  // the first row is the embedding, and the next rows are the layers from 0 on
    if (row.device != costs_.places()[kHost].info.id || layer >= border) continue;
    if (options_.asked_layers()) {
      row.why = str("gpu_layers=", options_.gpu_layers_each.empty() ? str(count) : options_.layers_text());
    } else {
      const Split with = fill.split(layers_ - layer);
      row.why = str(mib(fill.missing(with)), " too much for ", names(with));
    }
    if (row.name != "embedding") ++layer;
  }
  if (options_.asked_layers()) return;
  const Split more = fill.split(count + 1);
  const std::vector<Need> needs = fill.needs(more);
  const std::size_t worst = most_short(needs);
  const std::string who = more.size() == 1 ? "it" : costs_.places()[more[worst].place].info.id;
  const std::string would =
      str("with layer ", border - 1, " ", who, " would have to hold ", needs[worst].text(), ", ", mib(needs[worst].missing),
          " more than may be used; a smaller n_ctx or kv_budget, or kv_dtype=\"q8_0\", makes room");
  if (count == 0 && named) return;
  if (count == 0) {
    p_.fallback = str(names(more), " is not used, the model runs on the CPU: ", would);
  } else {
    note(count, " of ", layers_, " layers are on ", names(split), ": ", would);
  }
}

void Report::say_why_experts(const Fill& fill, const Split& split) {
  if (options_.gpu_experts) return;
  std::size_t away = 0;
  for (const Share& share : split) away += share.away;
  Split more = split;  // a copy in which the experts of one more layer are with their layer, on the last place that lacks experts
  const auto share = std::ranges::find_if(more.rbegin(), more.rend(), [](const Share& s) { return s.away > 0; });
  --share->away;
  const std::size_t i = static_cast<std::size_t>(more.rend() - share) - 1;
  const Need need = fill.needs(more)[i];
  note("the experts of ", away, " of ", layers_in(split), " layers stay on the CPU: with those of layer ", share->first + share->away, " ",
       costs_.places()[share->place].info.id, " would have to hold ", need.text(), ", ", mib(need.missing), " more than may be used");
}

// ---------------------------------------------------------------- does it fit
void Report::finish(std::uint64_t wanted) {
  if (hosts_.size() > 1) {
    Bound together{.name = "", .kind = ErrorKind::out_of_memory, .free = 0, .cost = {}};
    for (const Bound& host : hosts_) {
      together.name += str(together.name.empty() ? "" : " and ", host.name);
      together.free = std::max(together.free, host.free);
      const std::uint64_t scratch = plus(together.cost.scratch, host.cost.scratch);
      together.cost = both(together.cost, host.cost);
      together.cost.scratch = scratch;
    }
    bounds_.push_back(std::move(together));
  }
  std::uint64_t host = 0;  // free memory of the machine, counted only once because several devices share this memory
  for (const Bound& bound : hosts_) host = std::max(host, bound.free);
  p_.memory_free = host;
  for (const PlacedDevice& device : p_.devices) {
    p_.weights = plus(p_.weights, device.weights);
    p_.scratch = plus(p_.scratch, device.scratch);
    p_.kv_page = plus(p_.kv_page, device.kv_page);
    p_.state = plus(p_.state, device.state);
    if (!device.in_host_memory) p_.memory_free = plus(p_.memory_free, device.memory_free);
  }
  for (const Bound& bound : bounds_) {
    if (plus(bound.cost.weights, bound.cost.scratch) <= bound.free) continue;
    problem(bound.kind, p_.devices.size() == 1 ? "the model" : str("what lies on ", bound.name), " needs ", mib(bound.cost.weights),
            " for weights and ", mib(bound.cost.scratch), " for scratch; ", mib(bound.free),
            " of memory is free. Take a smaller quantization, or close other programs");
  }
  if (p_.kv_page > 0 || p_.state > 0) plan_caches(wanted);
  for (PlacementRow& row : p_.rows) row.kv = times(row.kv, pages_for(p_.n_ctx));
}

Report::Room Report::room() const {
  Room room{UINT64_MAX, UINT64_MAX, nullptr};
  for (const Bound& bound : bounds_) {
    if (!keeps_past(bound.cost)) continue;
    const std::uint64_t pages = units(bound.cost).pages_in(bound.room());
    if (!room.tightest || pages < room.pages) room.tightest = &bound;
    room.pages = std::min(room.pages, pages);
    room.quarter = std::min(room.quarter, units(bound.cost).pages_in(bound.room() / 4));
  }
  return room;
}

// Sets Placement::kv_budget. Without the option kv_budget=, the budget has pages for four sequences of n_ctx positions, but at most as many
// as fit into a quarter of the free memory. If `wanted` is more than that, the budget has `wanted` pages, or as many of them as fit into
// the free memory. If the caller gave n_ctx, the budget has pages for at least one sequence.
//
// If the budget holds fewer than n_ctx positions, lowers n_ctx, or sets the problem if the caller gave n_ctx.
void Report::plan_caches(std::uint64_t wanted) {
  const Room free = room();
  const CacheUnits cache{p_.kv_page, p_.state};
  const std::uint64_t asked = pages_for(p_.n_ctx);
  const std::string left =
      str(mib(free.tightest->room()), " free after weights", p_.devices.size() == 1 ? "" : " on " + free.tightest->name);
  if (options_.kv_budget) {
    p_.kv_budget = *options_.kv_budget;
    if (cache.pages_in(p_.kv_budget) > free.pages) {
      problem(free.tightest->kind, "kv_budget of ", mib(p_.kv_budget), " asked for, ", left, "; give a smaller kv_budget");
    }
  } else {
    std::uint64_t pages = std::max(std::min(wanted, free.pages), std::min(free.quarter, 4 * asked));
    if (options_.n_ctx && asked > pages) pages = asked;
    p_.kv_budget = cache.bytes_for(pages);
    if (pages > free.pages) {
      problem(free.tightest->kind, "n_ctx=", p_.n_ctx, " needs ", mib(units(free.tightest->cost).bytes_for(pages)), " for ",
              kept(free.tightest->cost), ", ", left, "; give a smaller n_ctx, or kv_dtype=\"q8_0\"");
    }
  }
  const std::int64_t fits = static_cast<std::int64_t>(std::min<std::uint64_t>(cache.pages_in(p_.kv_budget), 1u << 26)) * kPageTokens;
  if (fits < kPageTokens) {
    problem(free.tightest->kind, "kv_budget of ", p_.kv_budget, " bytes holds not even ", kPageTokens, " positions (", cache.bytes_for(1),
            " bytes)");
  } else if (fits < p_.n_ctx && options_.n_ctx) {
    problem(free.tightest->kind, "n_ctx=", p_.n_ctx, " needs ", mib(cache.bytes_for(asked)), " for ",
            p_.state == 0 ? "keys and values" : "keys, values and states", ", kv_budget is ", mib(p_.kv_budget),
            "; give a larger kv_budget, a smaller n_ctx, or kv_dtype=\"q8_0\"");
  } else if (fits < p_.n_ctx) {
    note("n_ctx is ", fits, ", not the model's ", p_.n_ctx, ": kv_budget of ", mib(p_.kv_budget), " holds no more; set n_ctx or kv_budget");
    p_.n_ctx = fits;
  }
}

}  // namespace pumice::engine
