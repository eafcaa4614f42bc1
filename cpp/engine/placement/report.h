// Writes what was decided into a Placement: devices, rows, reasons, and whether it fits.
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

  // Sets Placement::problem, unless there is one already: later problems follow from the first one.
  template <class... Parts>
  void problem(ErrorKind kind, const Parts&... parts) {
    if (!p_.problem) p_.problem = Error(kind, str(parts...));
  }
  template <class... Parts>
  void note(const Parts&... parts) {
    p_.notes.push_back(str(parts...));
  }

  // Adds a device. `all` is the memory that the model takes on it. `expert_bytes` is the maximum for experts in memory (Backend::pack());
  // `all` counts no more than that for experts.
  void add_device(const Place& place, const Cost& all, std::uint64_t expert_bytes);
  // Adds the stage of a share's layers, which run on the device that was added last, and its rows.
  void add_stage(const Share& share);
  // Adds rows for the experts that are on the host although their layers are not.
  void add_experts_away(const Split& split);

  // Says why the places do not hold the layers that were asked for. `most` is how many would fit.
  void too_many(const Fill& fill, const Split& asked, std::size_t most);
  void not_one(const Fill& fill);
  // Says of each layer of the host why it is there: how many bytes the other places lack to hold it and all layers after it.
  void say_why(const Fill& fill, const Split& split, bool named);
  void say_why_experts(const Fill& fill, const Split& split);

  // Checks that everything fits, plans the caches, and adds up. `wanted` is the number of cache pages for which room was left when places
  // got their layers; 0 if only one place takes part.
  void finish(std::uint64_t wanted);

 private:
  // The size of a memory, and what the model needs of it. The memory is that of one device, or the machine's memory, which several devices
  // may share.
  struct Bound {
    std::string name;
    ErrorKind kind;
    std::uint64_t free;
    Cost cost;
    std::uint64_t room() const { return less(free, plus(cost.weights, cost.scratch)); }
  };
  // How many cache pages fit beside the weights. A page id means the same positions on every device, so all devices have the same number of
  // pages, and the memory with the least room decides. `pages` is the number of pages that fit into the free memory, and `quarter` is the
  // number that fit into a quarter of it.
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
  std::vector<Bound> bounds_, hosts_;  // hosts_: of devices in the machine's memory
};

}  // namespace pumice::engine
