// Runs a lowered program for a batch.
#pragma once

#include <memory>

#include "core/backend.h"
#include "cpu/lowering.h"
#include "cpu/packed_weights.h"
#include "cpu/steps/run.h"
#include "cpu/team.h"

namespace pumice::cpu {

class ProgramExecutable final : public Executable {
 public:
  ProgramExecutable(Program program, std::shared_ptr<const PackedWeights> weights, Compute compute, std::shared_ptr<TeamHolder> team);
  void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override;

 private:
  void fold_bias(ProductPart& part, float scale);

  Program program_;
  std::shared_ptr<const PackedWeights> weights_;
  WeightShapes shapes_;  // the shapes of weights_
  CpuPlan plan_;
  std::shared_ptr<TeamHolder> team_;
  Constants constants_;
};

}  // namespace pumice::cpu
