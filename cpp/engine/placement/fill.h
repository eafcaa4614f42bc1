// Decides which layers each place runs. Places run consecutive layers, in the order in which the places are given. The first place, the
// host, runs the layers for which the others have no room, and so it runs the first layers.
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

// Layers [first, last) on one place. The experts of the first `away` of them are on the host.
struct Share {
  std::size_t place, first, last, away = 0;
};

// The layers that are not on the host, in order. The host has those before the first share.
using Split = std::vector<Share>;

// What a share needs of its place's memory.
struct Need {
  Cost cost;
  std::uint64_t pages = 0, bytes = 0;
  std::uint64_t limit = 0;    // bytes that may be used
  std::uint64_t missing = 0;  // how many more bytes are needed; 0 if the share fits
  std::string text() const;   // "12 MiB (weights 8 MiB, keys and values of 8192 positions 3 MiB, scratch 1 MiB)"
};

class Fill {
 public:
  // The arguments must outlive this object.
  Fill(const Costs& costs, const LoadOptions& options);

  // Divides the last `count` layers among the places behind the host, so that each is filled to the same fraction of its memory, or less if
  // one needs more for the head. The smallest places are left out if the others hold the layers and all together do not, which happens if a
  // place is too small for one layer. If nothing fits, returns the division by which the places lack the fewest bytes.
  //
  // Of a mixture, as many experts as fit are with their layers, those of the last layers first, or as many as gpu_experts= says.
  Split split(std::size_t count) const;
  // Divides the last layers as gpu_layers=[...] says: `counts` has a number for each place behind the host.
  Split split(const std::vector<std::int64_t>& counts) const;
  // Returns the split with the most layers that fits; an empty one if not one layer does.
  Split largest() const;

  std::vector<Need> needs(const Split& split) const;  // by share
  std::uint64_t missing(const Split& split) const;    // bytes, the sum over its shares
  // How many cache pages must fit beside the layers.
  std::uint64_t pages(const Split& split) const;
  std::size_t border(const Split& split) const { return split.empty() ? costs_.layers() : split.front().first; }

 private:
  using Places = std::vector<std::size_t>;
  // Returns the split that divide() makes, with the experts that gpu_experts= asks for or that fit. `divide` gets the layer before which
  // experts are away.
  Split with_experts(const std::function<Split(std::size_t away_before)>& divide) const;
  // Layers [first, end) that places are to hold. The experts of the layers before `away_before` are away.
  struct Stretch {
    Places places;
    std::size_t first = 0, end = 0, away_before = 0;
    std::uint64_t pages = 0;  // cache pages that must fit
    double host = 0;          // bytes of the machine's memory that may be used
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

// Divides all layers evenly among the places, in order. Each place gets layers, unless there are more places than layers.
Split evenly(const Costs& costs);

// Returns how many pages a model must have room for: those of kv_budget= or n_ctx=, or of kPlannedPositions.
std::uint64_t target_pages(const CacheUnits& cache, const LoadOptions& options, std::int64_t most_positions);

}  // namespace pumice::engine
