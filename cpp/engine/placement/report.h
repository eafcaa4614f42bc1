// Fills a Placement with the decisions: devices, stages, rows with reasons, notes, and the problem if the model does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/load_options.h"
#include "engine/placement.h"
#include "engine/placement/costs.h"
#include "engine/placement/fill.h"

namespace pumice::engine {

class Report {
 public:
  // The arguments must outlive this object, which writes into `placement`.
  Report(const Costs& costs, const LoadOptions& options, Placement& placement)
      : costs_(costs), options_(options), p_(placement), layers_(costs.layers()) {}

  // Sets Placement::problem. If there is a problem already, keeps it, because later problems usually follow from the first one.
  template <class... Parts>
  void problem(ErrorKind kind, const Parts&... parts) {
    if (!p_.problem) p_.problem = Error(kind, str(parts...));
  }
  template <class... Parts>
  void note(const Parts&... parts) {
    p_.notes.push_back(str(parts...));
  }

  // Adds a device. `all` is the cost of all that the model has on the device. `expert_bytes` is the maximum number of bytes of experts in
  // memory (Backend::pack()), and `all` must count no more bytes than this for experts.
  void add_device(const Place& place, const Cost& all, std::uint64_t expert_bytes);
  // Adds a stage with the layers of a share, and a row for each part of the model in this stage. The stage is on the device that was added
  // last.
  void add_stage(const Share& share);
  // Adds rows for the experts that are on the host although their layers are on another place.
  void add_experts_away(const Split& split);

  // Sets the problem that the places do not hold the requested layers. `most` is the number of layers that would fit.
  void too_many(const Fill& fill, const Split& asked, std::size_t most);
  void not_one(const Fill& fill);  // sets the problem that not even one layer fits on the GPUs, although the caller named them
  // Sets PlacementRow::why of each layer on the host. If gpu_layers= is given, the reason is this option. Otherwise the reason is how many
  // bytes the other places lack to hold this layer and all layers after it, and a note says why no further layer fits. If no layer fits at
  // all, Placement::fallback is set in place of the note, unless the caller named the GPUs (`named`).
  void say_why(const Fill& fill, const Split& split, bool named);
  void say_why_experts(const Fill& fill, const Split& split);  // adds a note that says why experts are on the host

  // Checks that everything fits, plans the caches, and computes the sums of all devices. `wanted` is the number of cache pages that Fill
  // has planned for. It is 0 if the layers were divided without Fill.
  void finish(std::uint64_t wanted);

 private:
  // The free bytes of a memory, and the cost of the parts of the model in it. The memory is that of one device, or that of the machine,
  // which several devices may share.
  struct Bound {
    std::string name;
    ErrorKind kind;
    std::uint64_t free;
    Cost cost;
    std::uint64_t room() const { return less(free, plus(cost.weights, cost.scratch)); }
  };
  // How many cache pages fit in addition to weights and scratch. A page id means the same positions on every device, so all devices have
  // the same number of pages, and the memory with room for the fewest pages decides (`tightest`). `pages` is the number of pages that fit
  // into the free memory, and `quarter` is the number of pages that fit into a quarter of the free memory.
  struct Room {
    std::uint64_t pages, quarter;
    const Bound* tightest;
  };
  Room room() const;
  void add_row(std::string name, const Cost& cost, const std::vector<bool>& matrices);
  void add_expert_row(const PlacedDevice& device);
  void plan_caches(std::uint64_t wanted);
  std::string formats_of(const std::vector<bool>& used) const;
  std::string names(const Split& split) const;

  const Costs& costs_;
  const LoadOptions& options_;
  Placement& p_;
  const std::size_t layers_;
  std::vector<Bound> bounds_, hosts_;  // hosts_ has the elements of bounds_ whose device uses the machine's memory
};

}  // namespace pumice::engine
