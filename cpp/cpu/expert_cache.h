// A cache of fixed size for the packed experts of a model whose weights do not all fit into memory. If a row chooses an expert that is not
// in the cache, the expert is read from the model's file, packed, and stored in place of another expert.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/fork_lock.h"
#include "core/weights.h"
#include "cpu/buffer.h"
#include "cpu/packed_matrix.h"

namespace pumice::cpu {

// The matrices of one Experts operation. The cache holds an expert's parts of all these matrices, or of none.
struct ExpertLayer {
  std::vector<std::size_t> matrices;  // indices in Weights::matrices
  bool operator==(const ExpertLayer&) const = default;
};

// Returns one ExpertLayer for each different set of matrices of the Experts operations in these programs. A matrix that is in two different
// sets is left out of both.
std::vector<ExpertLayer> expert_layers(std::span<const Program* const> programs);

// The size in bytes of all packed experts (`all`), and of the smallest possible ExpertCache for them (`least`). A step with many rows needs
// all experts of a layer at the same time, so for each size of experts the cache must have room for all experts of the largest layer.
struct ExpertBytes {
  std::uint64_t all = 0, least = 0;
};
ExpertBytes expert_bytes(std::span<const ExpertLayer> layers, const WeightShapes& weights);

// Experts of equal size share a pool of places. Each pool has room for all experts of its largest layer. The other bytes of the cache are
// divided among the pools in proportion to the bytes that each pool's experts still need.
//
// An expert that must be read replaces the expert with the lowest ExpertCache::share(), which is the fraction of about 50 recent steps of
// the layer that chose the expert. If several experts have the lowest share, the expert that was needed most recently is replaced. Every
// step runs the layers in the same order, so this expert will be the last one to be needed again. (If the least recently needed expert were
// replaced, each step of a long prompt would read all experts.)
class ExpertCache {
 public:
  // The numbers in ExpertLayer::matrices are indices in `sources`, from which experts are read, and in `matrices`, to which the cache
  // writes the addresses of experts. Throws out_of_memory if `bytes` is less than ExpertBytes::least or cannot be allocated.
  ExpertCache(std::vector<ExpertLayer> layers, std::vector<Matrix> sources, std::vector<PackedMatrix>& matrices, std::uint64_t bytes,
              int threads);

  std::uint64_t bytes() const { return arena_.bytes(); }
  std::uint64_t hits() const { return hits_.load(); }    // how often a step needed an expert that was in the cache
  std::uint64_t reads() const { return reads_.load(); }  // how often a step had to read an expert from the file
  // Called after experts were read. Throws if the model's file has changed.
  std::function<void()> require_unchanged;

  // Reads all experts once, so that damaged data are found during the load, and keeps experts in the cache until it is full. `parallel`
  // runs jobs as Team::parallel() does. `done` is called with the number of bytes that a job has read.
  using Parallel = std::function<void(std::int64_t jobs, const std::function<void(std::int64_t index, int thread)>& job)>;
  void fill(const Parallel& parallel, const std::function<void(std::uint64_t bytes)>& done);

 private:
  friend class ExpertPass;
  struct Place {
    std::int32_t layer = -1, expert = -1;  // index of the layer and of the expert; -1 if the place is free
    bool whole = false;                    // false while the expert's panels are being read
    std::uint64_t pass = 0;                // number of the last pass that needed this expert
  };
  struct Pool {
    std::uint64_t unit_bytes = 0;
    std::uint8_t* data = nullptr;
    std::vector<Place> places;
  };
  // The experts of a layer.
  struct Layer {
    ExpertLayer matrices;
    std::size_t pool = 0;
    std::vector<std::uint64_t> at;           // [index in ExpertLayer::matrices]: offset of the matrix in a unit
    std::vector<const std::uint8_t*> units;  // [expert]: address of the expert's unit; null if the expert is not in the cache
    std::vector<std::int32_t> places;        // [expert]: index in Pool::places; -1 if the expert is not in the cache
    std::vector<float> chosen;               // [expert]: number of steps that chose the expert, where older steps count less (kFade)
    float steps = 0;                         // number of all steps of the layer, where older steps count less in the same way
  };

  // Assigns places to `experts` of a layer, none of which is in the cache. These places are free or hold experts that the current pass does
  // not need. There are enough such places, because a pool has room for all experts of a layer.
  void take_places(std::size_t layer, std::span<const std::int32_t> experts);
  void free_place(Place& place);
  // Frees the places whose experts were not read completely. Sets Layer::units and Layer::places again from the other places.
  void forget_unfinished();
  // Called in the child of a fork if another thread of the parent was in a pass during the fork. Frees the places of experts that the other
  // thread had not read completely. Leaks `buffers_` instead of freeing them, because the other thread might have been growing them.
  void take_over();
  float share(const Place& place) const;
  void add_panels_of(std::size_t layer, std::int32_t expert, std::vector<Panel>& panels) const;
  std::uint8_t* unit(std::size_t layer, std::int32_t expert);
  void read(const Panel& panel, std::size_t layer, int thread);

  std::vector<Layer> layers_;
  std::vector<Matrix> sources_;
  std::vector<PackedMatrix>& matrices_;
  Buffer arena_;
  std::vector<Pool> pools_;
  std::vector<PanelBuffers> buffers_;  // one element per thread
  std::uint64_t passes_ = 0;
  std::atomic<std::uint64_t> hits_{0}, reads_{0};
  ForkLock lock_;  // held during a pass
};

// One run's use of the cache for one Experts operation. From begin() to end(), no other run uses the cache, and the experts that begin()
// was called with keep their places. If a pass is destroyed before all_read(), the experts that it read are removed from the cache.
class ExpertPass {
 public:
  explicit ExpertPass(ExpertCache* cache) : cache_(cache) {}
  ~ExpertPass();
  ExpertPass(const ExpertPass&) = delete;
  ExpertPass& operator=(const ExpertPass&) = delete;

  // Waits until no other run uses the cache, and makes room for the given experts of a layer. `experts` may contain an expert several
  // times. Returns the number of panels that must be read with read() before the experts are used.
  std::int64_t begin(std::int32_t layer, std::span<const std::int32_t> experts);
  void read(std::int64_t panel, int thread);  // thread-safe; throws if the panel cannot be read or the file has changed
  void all_read();                            // must be called after all panels were read; the experts can then be used
  void end();

 private:
  ExpertCache* cache_;
  std::size_t layer_ = 0;
  bool holds_ = false, unfinished_ = false;
  std::vector<Panel> panels_;
};

}  // namespace pumice::cpu
