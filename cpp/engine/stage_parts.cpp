#include "engine/stage_parts.h"

#include <utility>

namespace pumice::engine {

StageParts::StageParts(const model::ModelPrograms& programs, const Placement& placement) : programs_(programs), placement_(placement) {
  for (const StagePlan& stage : placement.stages) {
    for (std::size_t layer = stage.first; layer < stage.first + stage.away; ++layer)
      away_.insert(programs.description().at(layer, model::Role::expert_down).matrix);
  }
  away_.erase(MatrixId::none);  // was inserted for layers without experts
}

const std::vector<StageParts::Part>& StageParts::of(const model::ModelProgram& program, std::size_t device) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(&program); known != known_.end()) return known->second;
  std::vector<Part> parts;
  const auto apart = [&](const Op& op) {
    const auto* experts = std::get_if<Experts>(&op);
    return experts && away_.contains(experts->down);
  };
  const bool cut = placement_.experts_device && *placement_.experts_device != device;
  if (!cut) {
    parts.push_back({device, program});
  } else {
    for (ProgramPart& part : cut_program(program.program, programs_.shapes(), apart))
      parts.push_back(
          {part.apart ? *placement_.experts_device : device, model::model_program(std::move(part.program), programs_.shapes())});
  }
  return known_.emplace(&program, std::move(parts)).first->second;
}

}  // namespace pumice::engine
