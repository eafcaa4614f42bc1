// Weights in the CPU's layout (groups of 16 rows, kernels.h). They are packed once, when a model is loaded.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/program_check.h"
#include "cpu/buffer.h"
#include "cpu/expert_cache.h"
#include "cpu/norms_before.h"
#include "cpu/packed_matrix.h"
#include "cpu/team.h"

namespace pumice::cpu {

class PackedWeights final : public DeviceWeights {
 public:
  // Packs with all threads of the team, in short jobs, so that other callers can run their jobs in between. If the experts of `programs`
  // take more than `expert_bytes` bytes, an ExpertCache of that size holds some of them. Throws out_of_memory if `expert_bytes` is less
  // than ExpertBytes::least.
  PackedWeights(const Weights& weights, std::span<const Program* const> programs, Team& team, const Progress& progress,
                const Cancel& cancel, std::uint64_t expert_bytes = kAllExperts);
  std::uint64_t bytes() const override { return bytes_; }

  std::uint64_t expert_hits() const override { return cache_ ? cache_->hits() : 0; }
  std::uint64_t expert_reads() const override { return cache_ ? cache_->reads() : 0; }

  ExpertCache* cache() const { return cache_.get(); }  // null if all experts are always in memory
  const std::vector<PackedMatrix>& matrices() const { return matrices_; }
  const std::vector<Vector>& vectors() const { return vectors_; }
  const PackedMatrix& matrix(MatrixId id) const { return matrices_[static_cast<std::size_t>(id)]; }
  const float* vector(VectorId id) const { return id == VectorId::none ? nullptr : vectors_[static_cast<std::size_t>(id)].values.data(); }

 private:
  void take_vectors(const std::vector<Vector>& vectors);
  void lay_out(const Weights& weights, const std::vector<bool>& used, std::span<const ExpertLayer> cached,
               const std::vector<bool>& sketched);
  void fold_norms(const Weights& weights, const std::vector<NormBefore>& norms);
  void pack(const std::vector<Matrix>& sources, Team& team, const Progress& progress, const Cancel& cancel);
  void make_sketches(Team& team, const Cancel& cancel);

  // Holds all matrices one after another, in the model's order. The matrices of a layer are therefore neighbours, and even small matrices
  // are in huge pages. (A separate buffer of less than 2 MiB would have pages of 4 KiB, which a core of Zen 4 reads a third more slowly.)
  Buffer arena_;
  std::vector<PackedMatrix> matrices_;
  std::unique_ptr<ExpertCache> cache_;
  std::vector<std::unique_ptr<const Folded>> folded_;
  std::vector<Vector> vectors_;
  std::uint64_t bytes_ = 0;
};

WeightShapes shapes_of(const PackedWeights& weights);
// Returns the folded norm of each matrix, by MatrixId. An element is null if no norm is folded into the matrix.
std::vector<const Folded*> folded_of(const PackedWeights& weights);

}  // namespace pumice::cpu
