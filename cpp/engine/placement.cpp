#include "engine/placement.h"

#include <algorithm>
#include <set>

#include "engine/placement/costs.h"
#include "engine/placement/experts.h"
#include "engine/placement/fill.h"
#include "engine/placement/report.h"

namespace pumice::engine {
namespace {

using model::ModelPrograms;

// Returns a placement without layers, in which n_ctx and the notes about the model are set.
Placement begun(const ModelPrograms& programs, const LoadOptions& options) {
  const model::Description& d = programs.description();
  Placement p{.n_ctx = options.n_ctx.value_or(d.config.n_ctx), .notes = d.notes, .incomplete = d.incomplete};
  require(p.n_ctx >= 1 && p.n_ctx <= d.config.n_ctx, "n_ctx=", p.n_ctx, ": the model was trained for 1 to ", d.config.n_ctx, " positions");
  return p;
}

std::string experts_asked(const LoadOptions& options) {
  return options.gpu_experts.value_or(0) == kAllLayers ? "\"all\"" : str(options.gpu_experts.value_or(0));
}

// Returns the number of layers that gpu_layers= requests on all GPUs together, or nothing for "auto". Throws invalid_argument if the model
// has fewer layers, or if gpu_layers=[...] does not have one number for each GPU.
std::optional<std::size_t> layers_asked(const LoadOptions& options, std::size_t layers, std::size_t gpus) {
  const std::string asked = options.layers_text();
  if (!options.gpu_layers_each.empty()) {
    require(options.gpu_layers_each.size() == gpus, "gpu_layers=", asked, ": ", options.gpu_layers_each.size(), " numbers for ", gpus,
            gpus == 1 ? " GPU" : " GPUs", "; give one number a device, in the order of device=");
  }
  if (!options.asked_layers()) return {};
  const std::int64_t count = *options.asked_layers();
  require(count <= static_cast<std::int64_t>(layers), "gpu_layers=", asked, ": the model has ", layers, " layers; give 0 to ", layers,
          ", or \"all\"");
  return count == kAllLayers ? layers : static_cast<std::size_t>(count);
}

// Places the model's last layers on GPUs, and the others on the CPU.
class Placer {
 public:
  Placer(const Costs& costs, const LoadOptions& options, Placement& placement)
      : costs_(costs), options_(options), p_(placement), fill_(costs, options), report_(costs, options, placement) {}

  void place(const std::optional<std::size_t>& asked, bool named) {
    const Split largest = fill_.largest();
    Split split = !asked ? largest : options_.gpu_layers_each.empty() ? fill_.split(*asked) : fill_.split(options_.gpu_layers_each);
    if (asked && fill_.missing(split) > 0) {
      report_.too_many(fill_, split, costs_.layers() - fill_.border(largest));
    } else if (split.empty() && named) {
      report_.not_one(fill_);
    }
    const bool away = std::ranges::any_of(split, [](const Share& share) { return share.away > 0; });
    const std::size_t border = fill_.border(split);
    if (border > 0 || away) add_host(split);
    if (border > 0) report_.add_stage({kHost, 0, border});
    for (const Share& share : split) {
      report_.add_device(costs_.places()[share.place], costs_.stage(share.place, share.first, share.last, share.away), kAllExperts);
      report_.add_stage(share);
    }
    note_idle(split);
    report_.say_why(fill_, split, named);
    if (away) {
      p_.experts_device = 0;
      report_.add_experts_away(split);
      report_.say_why_experts(fill_, split);
    }
    finish(fill_.pages(split));
  }

  // Places the layers evenly. Does not report why a layer is on its device.
  void place_evenly() {
    const Split split = evenly(costs_);
    for (const Share& share : split) add_whole(share);
    for (std::size_t i = split.size(); i < costs_.places().size(); ++i)
      report_.note(costs_.places()[i].info.id, " is idle: the model has only ", costs_.layers(), " layers");
    finish(0);
  }

 private:
  void finish(std::uint64_t wanted_pages) {
    if (options_.expert_cache && !can_read_experts_) {
      require(!options_.gpu_experts, "expert_cache=", *options_.expert_cache, ": no experts are on the CPU");
      report_.note("expert_cache is not used: all experts are on the GPU");
    }
    report_.finish(wanted_pages);
  }
  std::uint64_t limited(const Place& place, std::uint64_t least, std::uint64_t beside, Cost& cost) {
    can_read_experts_ = can_read_experts_ || cost.experts > 0;
    return limit_experts(place, least, beside, costs_.description().config.n_ctx, options_, report_, cost);
  }
  static std::set<std::size_t> range(std::size_t first, std::size_t last) {
    std::set<std::size_t> layers;
    for (std::size_t l = first; l < last; ++l) layers.insert(l);
    return layers;
  }

  void add_whole(const Share& share) {
    const Place& place = costs_.places()[share.place];
    Cost all = costs_.stage(share.place, share.first, share.last, 0);
    const std::uint64_t bytes = limited(place, least_experts(costs_, share.place, range(share.first, share.last)), 0, all);
    report_.add_device(place, all, bytes);
    report_.add_stage(share);
  }

  // Adds the CPU to the placement's devices, with its own layers and with the experts of layers that are on GPUs.
  void add_host(const Split& split) {
    const Place& host = costs_.places()[kHost];
    Cost all = costs_.stage(kHost, 0, fill_.border(split), 0);
    std::set<std::size_t> layers = range(0, fill_.border(split));
    std::uint64_t beside = 0;
    const std::vector<Need> needs = fill_.needs(split);
    for (std::size_t i = 0; i < split.size(); ++i) {
      const Share& share = split[i];
      for (std::size_t l = share.first; l < share.first + share.away; ++l) {
        all = both(all, costs_.experts(kHost, l));
        layers.insert(l);
      }
      if (costs_.places()[share.place].in_host_memory) beside = plus(beside, needs[i].bytes);
    }
    const std::uint64_t bytes = limited(host, least_experts(costs_, kHost, layers), beside, all);
    report_.add_device(host, all, bytes);
  }

  void note_idle(const Split& split) {
    if (split.empty()) return;
    for (std::size_t i = kHost + 1; i < costs_.places().size(); ++i) {
      if (std::ranges::find(split, i, &Share::place) == split.end())
        report_.note(costs_.places()[i].info.id, " is idle: ",
                     options_.asked_layers() ? "gpu_layers=" + options_.layers_text() : "it holds no layer beside those of the others");
    }
  }

  const Costs& costs_;
  const LoadOptions& options_;
  Placement& p_;
  const Fill fill_;
  Report report_;
  bool can_read_experts_ = false;  // true if experts are on a device that can read experts from the file when they are needed
};

}  // namespace

Placement place(const ModelPrograms& programs, const Devices& devices, const LoadOptions& options) {
  Placement p = begun(programs, options);
  p.notes.insert(p.notes.end(), devices.notes.begin(), devices.notes.end());
  p.fallback = devices.fallback;
  const auto asked = layers_asked(options, programs.description().config.layers.size(), devices.gpus.size());
  std::vector<std::shared_ptr<Backend>> all = {devices.cpu};
  const bool cpu_alone = devices.gpus.empty() || asked == 0;
  if (!cpu_alone) all.insert(all.end(), devices.gpus.begin(), devices.gpus.end());
  const Costs costs(programs, options, all);
  p.encodes_first = costs.encodes_first();
  require(costs.has_experts() || (!options.gpu_experts && !options.expert_cache),
          options.gpu_experts ? str("gpu_experts=", experts_asked(options)) : str("expert_cache=", options.expert_cache.value_or(0)),
          ": this model has no experts");
  Placer placer(costs, options, p);
  if (cpu_alone) {
    for (const auto& gpu : devices.gpus) p.notes.push_back(str(gpu->info().id, " is idle: gpu_layers=0"));
    require(options.gpu_experts.value_or(0) == 0, "gpu_experts=", experts_asked(options), ": no layer is on a GPU");
    placer.place_evenly();
  } else {
    if (costs.has_experts() && !costs.can_part_experts() && options.gpu_experts.value_or(kAllLayers) != kAllLayers)
      fail(ErrorKind::unsupported_model, "gpu_experts=", *options.gpu_experts,
           ": the layers of this model cannot be cut around their experts");
    placer.place(asked, devices.gpu_named);
  }
  return p;
}

Placement place_evenly(const ModelPrograms& programs, const std::vector<std::shared_ptr<Backend>>& backends, const LoadOptions& options) {
  Placement p = begun(programs, options);
  const Costs costs(programs, options, backends);
  p.encodes_first = costs.encodes_first();
  Placer placer(costs, options, p);
  placer.place_evenly();
  return p;
}

}  // namespace pumice::engine
