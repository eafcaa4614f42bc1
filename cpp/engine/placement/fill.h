// Decides which layers each place runs. Each place runs consecutive layers, in the order in which the places are given. The first place is
// the host. It runs the first layers of the model, for which the other places have too little memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/load_options.h"
#include "engine/placement/costs.h"

namespace pumice::engine {

inline constexpr std::size_t kHost = 0;  // index of the host in Costs::places()

// The layers first, ..., last - 1 on one place. The experts of the first `away` of these layers are on the host.
struct Share {
  std::size_t place, first, last, away = 0;
};

// The shares of all places but the host, in the order of layers. The host has the layers before the first share.
using Split = std::vector<Share>;

// How much memory of its place a share needs.
struct Need {
  Cost cost;
  std::uint64_t pages = 0, bytes = 0;  // number of cache pages, and number of bytes in all
  std::uint64_t limit = 0;             // number of bytes that the share may use
  std::uint64_t missing = 0;           // number of bytes by which `bytes` is above `limit`; 0 if the share fits
  std::string text() const;            // for example "12 MiB (weights 8 MiB, keys and values of 8192 positions 3 MiB, scratch 1 MiB)"
};

class Fill {
 public:
  // The arguments must outlive this object.
  Fill(const Costs& costs, const LoadOptions& options);

  // Divides the last `count` layers among all places but the host, so that each place uses the same fraction of its memory. If the place
  // with the head needs a larger fraction, the other places use a smaller fraction. A place may be too small for even one layer. So if the
  // layers do not fit, the smallest places are left out, one after another, until the layers fit. If they never fit, returns the division
  // that lacks the fewest bytes.
  //
  // In a mixture, the experts of the last layers are with their layers, for as many layers as fit or as gpu_experts= requires. The experts
  // of the other layers are on the host.
  Split split(std::size_t count) const;
  // Divides the last layers as gpu_layers=[...] requires. `counts` has a number of layers for each place but the host.
  Split split(const std::vector<std::int64_t>& counts) const;
  // Returns the split with the largest number of layers that fit on its places. It is empty if not even one layer fits.
  Split largest() const;

  std::vector<Need> needs(const Split& split) const;  // returns the need of each share
  std::uint64_t missing(const Split& split) const;    // returns the sum of Need::missing over all shares
  // Returns the number of cache pages that each place must have memory for.
  std::uint64_t pages(const Split& split) const;
  // Returns the first layer that is not on the host.
  std::size_t border(const Split& split) const { return split.empty() ? costs_.layers() : split.front().first; }

 private:
  using Places = std::vector<std::size_t>;
  // Returns divide(away_before), a split in which the experts of all layers before `away_before` must be on the host. gpu_experts=
  // determines `away_before`. Without this option, as many experts as fit are with their layers.
  Split with_experts(const std::function<Split(std::size_t away_before)>& divide) const;
  // The part of with_experts() for models whose experts do not all fit: first all experts are on the host, and then as many as fit are
  // moved.
  Split with_some_experts(const std::function<Split(std::size_t away_before)>& divide) const;
  // The layers first, ..., end - 1, and the places among which they must be divided. The experts of the layers before `away_before` are on
  // the host.
  struct Stretch {
    Places places;
    std::size_t first = 0, end = 0, away_before = 0;
    std::uint64_t pages = 0;  // number of cache pages that each place must have memory for
    double host = 0;          // number of bytes of the machine's memory that may be used
  };
  Split balanced(const Places& places, std::size_t count, std::size_t away_before) const;
  Split balanced(const Stretch& stretch) const;
  std::optional<Split> filled(const Stretch& stretch, std::uint64_t fraction) const;
  void bring_experts(Split& split) const;
  void trim(Share& share) const;
  std::size_t away_before_asked() const;

  const Costs& costs_;
  const LoadOptions& options_;
};

// Divides all layers evenly among the places, in order. Each place gets at least one layer, unless there are more places than layers.
Split evenly(const Costs& costs);

// Returns the number of cache pages that a placement must have memory for. kv_budget= or n_ctx= determines this number. If neither is
// given, the pages must hold `most_positions` positions, but at most kPlannedPositions.
std::uint64_t target_pages(const CacheUnits& cache, const LoadOptions& options, std::int64_t most_positions);

}  // namespace pumice::engine
