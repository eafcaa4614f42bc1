// Builds pipelines by preparing a model's programs on the devices of its placement.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/pipeline.h"
#include "engine/placement.h"
#include "engine/stage_parts.h"
#include "model/model_programs.h"

namespace pumice::engine {

// A program, and the index of the device that runs it.
struct PlacedProgram {
  std::size_t device;
  const Program* program;
  bool at_load;  // true if load() prepares the program; if false, the first call that needs the program prepares it
};
// Returns all programs for which weights are packed. These are the stages of the body, and the programs that the last device runs after the
// layers, such as the head.
std::vector<PlacedProgram> placed_programs(const model::ModelPrograms& programs, const Placement& placement, const StageParts& parts);

// Returns the output that load() prepares, which is Output::selected for a decoder with a head and Output::pooled for an encoder.
model::Output main_output(const model::Description& description);

// Builds the pipelines of one model. The arguments of the constructor must outlive this object.
class PipelineBuilder {
 public:
  PipelineBuilder(const model::ModelPrograms& programs, const Placement& placement, const StageParts& parts,
                  const std::vector<std::shared_ptr<const DeviceWeights>>& weights, Compute compute);

  Pipeline of(model::Output output, const Cancel& cancel) const;
  Pipeline layers(const Cancel& cancel) const;  // returns a pipeline with one stage for the embedding, and one for each layer
  Pipeline of(std::vector<Pipeline::Stage> body) const;
  Pipeline::Stage stage(std::size_t device, const model::ModelProgram& program, const Cancel& cancel) const;
  std::size_t device_of(std::size_t layer) const;  // index in Placement::devices

  const model::Description& description() const { return programs_.description(); }
  const model::ModelPrograms& programs() const { return programs_; }
  const Placement& placement() const { return placement_; }

 private:
  // Appends to `to` one stage for each part of `program`. `device` runs all parts except experts that are placed on another device.
  void add_stages(std::vector<Pipeline::Stage>& to, std::size_t device, const model::ModelProgram& program, const Cancel& cancel) const;

  const model::ModelPrograms& programs_;
  const Placement& placement_;
  const StageParts& parts_;
  const std::vector<std::shared_ptr<const DeviceWeights>>& weights_;  // by index in Placement::devices
  const Compute compute_;
  std::vector<std::shared_ptr<Backend>> backends_;  // by index in Placement::devices
};

}  // namespace pumice::engine
