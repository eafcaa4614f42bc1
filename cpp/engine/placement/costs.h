// Computes what each part of a model costs on each place, in bytes of weights, keys and values, states and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "engine/cache_budget.h"
#include "engine/load_options.h"
#include "model/model_programs.h"

namespace pumice::engine {

// plus() returns a + b, and throws out_of_memory if the sum does not fit into 64 bits. less() returns a - b, or 0 if b is larger.
std::uint64_t plus(std::uint64_t a, std::uint64_t b);
inline std::uint64_t less(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }
// Returns the cost of two parts together on one place. The parts use the same workspace, so their scratch is the larger of both, not the
// sum.
Cost both(const Cost& a, const Cost& b);
inline CacheUnits units(const Cost& cost) { return {cost.page, cost.state}; }
inline bool keeps_past(const Cost& cost) { return cost.page > 0 || cost.state > 0; }
inline const char* kept(const Cost& cost) {  // returns the name of what is stored for a sequence's past, for messages
  return cost.state == 0 ? "keys and values" : cost.page == 0 ? "states" : "keys, values and states";
}
std::uint64_t pages_for(std::int64_t positions);
// Returns a size as a text such as "12 MiB". Sizes below 10 MiB are in KiB, so that two small sizes that differ do not look equal.
std::string mib(std::uint64_t bytes);

// A device on which parts of a model may be placed.
struct Place {
  explicit Place(std::shared_ptr<Backend> device);
  std::shared_ptr<Backend> backend;
  DeviceInfo info;
  bool is_cpu, in_host_memory;  // in_host_memory: true if the device uses the machine's memory, which other devices may use too
  // Number of bytes that a model may use. On a device with its own memory, a sixteenth of the free memory (at most 512 MiB) is kept free
  // for a second workspace, upload buffers, pipelines, and the driver's rounding of sizes.
  std::uint64_t free;
};

// A part of a model that follows the last layer and is on the same place as that layer, such as the head.
struct End {
  std::string name;  // as in PlacementRow::name
  Cost cost;
  std::vector<bool> matrices;  // [MatrixId]: true if the part uses the matrix
};

class Costs {
 public:
  // The programs and the options must outlive this object.
  Costs(const model::ModelPrograms& programs, const LoadOptions& options, const std::vector<std::shared_ptr<Backend>>& devices);

  const std::vector<Place>& places() const { return places_; }
  std::size_t layers() const { return layers_; }
  const model::Description& description() const { return d_; }
  bool encodes_first() const { return encodes_first_; }  // see Placement::encodes_first
  bool has_experts() const;
  bool is_mixture(std::size_t layer) const { return d_.config.layers[layer].if_mixture() != nullptr; }
  bool can_part_experts() const;  // returns true if the experts of a layer can be on another place than the rest of the layer

  // The functions below return costs. `place` is an index in places(), and `first` is the first layer of that place's stage. The experts of
  // the stage's first `away` layers are on another place.
  Cost embedding(std::size_t place) const { return measured_[place].embedding; }
  // Returns the cost of a layer. If several layers of a stage share weights, or read the same keys and values, only the first of them
  // counts these bytes.
  Cost layer(std::size_t place, std::size_t first, std::size_t layer, std::size_t away) const;
  // Returns the cost of the layers first, ..., last - 1 together, of the embedding if `first` is 0, and of ends() if `last` is the number
  // of layers.
  const Cost& stage(std::size_t place, std::size_t first, std::size_t last, std::size_t away) const;
  Cost experts(std::size_t place, std::size_t layer) const { return measured_[place].experts[layer]; }
  std::uint64_t least_experts(std::size_t place, std::size_t layer) const { return measured_[place].layers[layer].experts_least; }
  // Returns the parts of the model that follow the last layer, in the order of Placement::rows.
  std::vector<End> ends(std::size_t place, std::size_t first, std::size_t away) const;
  // Returns true if the stage with the last layer can run a side part. A part that attends to the model's layers needs all of their caches
  // in one program. If experts are on another place (away > 0), the stage is cut into several programs, so this part cannot run.
  bool runs(const model::SidePart& side, std::size_t away) const { return away == 0 || side.reads.empty(); }
  std::int32_t ranks(std::size_t place) const { return measured_[place].ranks; }  // Placement::ranks for a head on this place

  const std::vector<bool>& embedding_matrices() const { return embedding().matrices; }
  const std::vector<bool>& layer_matrices(std::size_t layer) const { return program(layer).matrices; }

 private:
  // The cost of each part of the model on one place.
  struct Measured {
    Cost embedding, head;
    Cost sketch;              // cost of the sketch, a smaller copy of the head that Top reads first (cpu/sketch.h)
    std::vector<Cost> sides;  // by index in Description::sides
    std::vector<Cost> ends;   // by index in ends_
    std::int32_t ranks = 0;
    std::vector<Cost> layers;
    // For each layer, the cost of its Experts operations and the cost of its other operations. Both are empty if the model has no experts,
    // or if its programs cannot be cut around these operations.
    std::vector<Cost> experts, others;
  };
  const model::ModelProgram& embedding() const { return programs_.body(0, 0, model::Output::hidden); }
  const model::ModelProgram& program(std::size_t layer) const { return programs_.body(layer, layer + 1, model::Output::hidden); }
  const model::ModelProgram& end(model::Output output) const { return programs_.body(layers_ - 1, layers_, output); }
  Measured measure(const Place& place) const;
  void measure_experts(const Place& place, Measured& m) const;
  void measure_head(const Place& place, Measured& m) const;
  std::uint64_t step_bytes() const;
  bool has_own_head(std::size_t side) const;
  Cost measure_side(const Place& place, const Measured& m, std::size_t side) const;
  Cost side(std::size_t place, std::size_t first, std::size_t side) const;
  std::vector<bool> side_matrices(std::size_t side) const;

  const model::ModelPrograms& programs_;
  const model::Description& d_;
  const LoadOptions& options_;
  const std::size_t layers_;
  const std::vector<model::EndOutput> ends_;
  bool generates_, tied_, encodes_first_;
  std::vector<Place> places_;
  std::int64_t rows_;                      // number of token rows that scratch is planned for
  std::vector<std::vector<bool>> shares_;  // [layer][other]: true if `other` uses all matrices that `layer` uses, as in ALBERT
  std::vector<Measured> measured_;         // by index in places_
  mutable std::map<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>, Cost> stages_;  // results of stage() by its arguments
};

}  // namespace pumice::engine
