// Packed experts of a model whose weights do not all fit into memory. The cache has a fixed size. An expert that a row chooses and that is
// not in the cache is read from the model's file and packed, and takes the place of another expert.
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

// The matrices of one operation Experts. The cache holds an expert's parts of all these matrices, or none of them.
struct ExpertLayer {
  std::vector<std::size_t> matrices;  // indices in Weights::matrices
  bool operator==(const ExpertLayer&) const = default;
};

// Returns the layers of all operations Experts in these programs, each once. A matrix that two different layers use is in none of them.
std::vector<ExpertLayer> expert_layers(std::span<const Program* const> programs);

// The bytes of all packed experts, and the least bytes of an ExpertCache for them: all experts of one layer of each size, because a step
// with many rows needs all experts of a layer at once.
struct ExpertBytes {
  std::uint64_t all = 0, least = 0;
};
ExpertBytes expert_bytes(std::span<const ExpertLayer> layers, const WeightShapes& weights);

// Experts of equal size share a pool of places. Each pool has room for its largest layer. The rest of the cache is divided in proportion to
// the other bytes of each pool's experts.
//
// An expert that must be read replaces the expert that was chosen in the smallest share of the recent steps of its layer (about 50 steps,
// of which later ones count more). If shares are equal, it replaces the one that was needed last: a step goes through the layers in order,
// so the expert that was needed last is needed again the latest. (If the least recently needed expert were replaced, each step of a long
// prompt would read all experts.)
class ExpertCache {
 public:
  // `matrices` gets the addresses of experts. `sources` and `matrices` are indexed by ExpertLayer::matrices. Throws out_of_memory if
  // `bytes` is less than the least bytes or cannot be allocated.
  ExpertCache(std::vector<ExpertLayer> layers, std::vector<Matrix> sources, std::vector<PackedMatrix>& matrices, std::uint64_t bytes,
              int threads);

  std::uint64_t bytes() const { return arena_.bytes(); }
  std::uint64_t hits() const { return hits_.load(); }    // how often a step found an expert that it needed in the cache
  std::uint64_t reads() const { return reads_.load(); }  // how often a step had to read an expert from the file
  // Called after experts were read. Throws if the file has changed.
  std::function<void()> require_unchanged;

  // Reads all experts once, so that damage is found during the load, and keeps the first ones that find a place. parallel() runs jobs as
  // Team::parallel() does; `done` is called with the number of bytes that a job has read.
  using Parallel = std::function<void(std::int64_t jobs, const std::function<void(std::int64_t index, int thread)>& job)>;
  void fill(const Parallel& parallel, const std::function<void(std::uint64_t bytes)>& done);

 private:
  friend class ExpertPass;
  struct Place {
    std::int32_t layer = -1, expert = -1;  // -1: the place is free
    bool whole = false;                    // false while the expert's panels are being read
    std::uint64_t pass = 0;                // the last pass that needed this expert
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
    std::vector<std::uint64_t> at;           // offset of each matrix in a unit
    std::vector<const std::uint8_t*> units;  // by expert: address of its unit, or null
    std::vector<std::int32_t> places;        // by expert: index in Pool::places, or -1
    std::vector<float> chosen;               // by expert: sum of the weights of the layer's steps that chose it (kFade)
    float steps = 0;                         // sum of the weights of all of the layer's steps
  };

  // Puts experts of a layer, none of which is in the cache, in the place of others that the current pass does not need. Such places exist,
  // because a pool has room for all experts of a layer.
  void take_places(std::size_t layer, std::span<const std::int32_t> experts);
  void free_place(Place& place);
  // Derives what is where from the places whose experts were read completely. What else was begun is forgotten.
  void forget_unfinished();
  // Called in the child of a fork if another thread of the parent was in a pass. Marks as absent the experts that this thread had not read
  // completely. Never frees the buffers, because this thread may have been growing them.
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
  std::vector<PanelBuffers> buffers_;  // by thread
  std::uint64_t passes_ = 0;
  std::atomic<std::uint64_t> hits_{0}, reads_{0};
  ForkLock lock_;  // held during a pass
};

// The use of the cache by one run. From begin() to end(), which is the time of one operation Experts, the run alone uses the cache, and the
// experts that it asked for stay where they are. If a pass is destroyed before the experts were read completely, they count as not read.
class ExpertPass {
 public:
  explicit ExpertPass(ExpertCache* cache) : cache_(cache) {}
  ~ExpertPass();
  ExpertPass(const ExpertPass&) = delete;
  ExpertPass& operator=(const ExpertPass&) = delete;

  // Waits until no other run uses the cache, and makes room for the given experts of a layer; each may be given several times. Returns the
  // number of panels that read() must read before the experts are used.
  std::int64_t begin(std::int32_t layer, std::span<const std::int32_t> experts);
  void read(std::int64_t panel, int thread);  // any thread; throws what reading throws, or that the file has changed
  void all_read();                            // the experts can be used now
  void end();

 private:
  ExpertCache* cache_;
  std::size_t layer_ = 0;
  bool holds_ = false, unfinished_ = false;
  std::vector<Panel> panels_;
};

}  // namespace pumice::cpu
