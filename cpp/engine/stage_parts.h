// Cuts a model's programs into the parts that each device runs. If the experts of some layers are not on the device that runs these layers,
// the program of these layers is cut before and after each operation of such experts (core/program_cut.h).
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "core/program_cut.h"
#include "engine/placement.h"
#include "model/model_programs.h"

namespace pumice::engine {

// Makes the parts of each program when they are first asked for, and keeps them. Thread-safe. The programs and the placement must outlive
// this object.
class StageParts {
 public:
  struct Part {
    std::size_t device = 0;  // index in Placement::devices
    model::ModelProgram program;
  };

  StageParts(const model::ModelPrograms& programs, const Placement& placement);
  // Returns the parts, in order, of a program whose layers are on `device`. A program that is not cut is one part.
  const std::vector<Part>& of(const model::ModelProgram& program, std::size_t device) const;

 private:
  const model::ModelPrograms& programs_;
  const Placement& placement_;
  std::set<MatrixId> away_;  // the down matrices (Experts::down) of experts that are not on the device of their layer
  mutable std::mutex mutex_;
  mutable std::map<const model::ModelProgram*, std::vector<Part>> known_;
};

}  // namespace pumice::engine
