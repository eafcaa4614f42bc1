#include "engine/pipeline_builder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace pumice::engine {

using model::ModelProgram;
using model::ModelPrograms;
using model::Output;

namespace {

// Returns the three programs of a side part (a draft head or an assistant), in the order of Pipeline::Draft.
std::array<const ModelProgram*, 3> side_programs(const ModelPrograms& programs, const StagePlan& last, std::size_t side) {
  return {&programs.side(side, last.first, true), &programs.side(side, last.first, false), &programs.side_logits(side)};
}

// Returns a copy of the draft head's program `draft` in which the cache ids are those of `shares`, the last part of the last stage. The
// last cache of `shares` belongs to the draft head. In `draft`, the ids count the caches of the whole stage, and the last part may have
// fewer.
ModelProgram with_last_cache(ModelProgram draft, const Program& shares) {
  draft.program.caches = shares.caches;
  const auto last = static_cast<CacheId>(shares.caches.size() - 1);
  for (Op& op : draft.program.ops) {
    if (auto* store = std::get_if<Store>(&op)) store->cache = last;
    if (auto* attend = std::get_if<Attend>(&op)) attend->cache = last;
  }
  return draft;
}

}  // namespace

Output main_output(const model::Description& d) { return d.config.has_head ? Output::selected : Output::pooled; }

std::vector<PlacedProgram> placed_programs(const ModelPrograms& programs, const Placement& placement, const StageParts& parts) {
  const model::Description& d = programs.description();
  const StagePlan& last = placement.stages.back();
  std::vector<PlacedProgram> all;
  const auto add_body = [&](const StagePlan& stage, Output output, bool at_load) {
    for (const StageParts::Part& part : parts.of(programs.body(stage.first, stage.last, output), stage.device))
      all.push_back({part.device, &part.program.program, at_load});
  };
  const auto add_end = [&](const ModelProgram& program) { all.push_back({last.device, &program.program, true}); };
  for (const StagePlan& stage : placement.stages) add_body(stage, main_output(d), true);
  if (d.config.has_head) add_end(programs.head());
  if (placement.ranks > 0) add_end(programs.top());
  for (const std::size_t side : placement.sides)
    for (const ModelProgram* program : side_programs(programs, last, side)) add_end(*program);
  for (const model::EndOutput& end : model::ends_of(d))
    if (end.output != main_output(d)) add_body(last, end.output, false);
  return all;
}

PipelineBuilder::PipelineBuilder(const ModelPrograms& programs, const Placement& placement, const StageParts& parts,
                                 const std::vector<std::shared_ptr<const DeviceWeights>>& weights, Compute compute)
    : programs_(programs), placement_(placement), parts_(parts), weights_(weights), compute_(compute) {
  for (const PlacedDevice& device : placement.devices) backends_.push_back(device.backend);
}

Pipeline::Stage PipelineBuilder::stage(std::size_t device, const ModelProgram& program, const Cancel& cancel) const {
  Backend& backend = *placement_.devices[device].backend;
  return {.backend = &backend,
          .backend_index = device,
          .executable = backend.prepare(program.program, weights_[device], compute_, cancel),
          .input_width = program.input_width,
          .output_width = program.output_width};
}

void PipelineBuilder::add_stages(std::vector<Pipeline::Stage>& to, std::size_t device, const ModelProgram& program,
                                 const Cancel& cancel) const {
  const std::vector<StageParts::Part>& parts = parts_.of(program, device);
  for (const StageParts::Part& part : parts) {
    to.push_back(stage(part.device, part.program, cancel));
    to.back().unfinished = &part != &parts.back();
  }
}

Pipeline PipelineBuilder::of(Output output, const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  for (const StagePlan& plan : placement_.stages) {
    add_stages(body, plan.device, programs_.body(plan.first, plan.last, output), cancel);
  }
  Pipeline::Stage head{}, log_probs{}, top{};
  Pipeline::Draft draft{};
  if (output == Output::selected) {
    const std::size_t last = placement_.stages.back().device;
    head = stage(last, programs_.head(), cancel);
    log_probs = stage(last, programs_.log_probs(), cancel);
    if (placement_.ranks > 0) {
      top = stage(last, programs_.top(), cancel);
      top.ranks = placement_.ranks;
    }
    for (const std::size_t side : placement_.sides) {
      const StagePlan& plan = placement_.stages.back();
      const auto [first, next, logits] = side_programs(programs_, plan, side);
      const bool own_caches = description().sides[side].reads.empty();
      const Program& shares = parts_.of(programs_.body(plan.first, plan.last, output), plan.device).back().program.program;
      const auto part = [&](const ModelProgram& program) {
        return stage(last, own_caches ? with_last_cache(program, shares) : program, cancel);
      };
      draft = {.first = part(*first), .next = part(*next), .logits = stage(last, *logits, cancel), .fixed = !own_caches};
    }
  }
  return Pipeline(backends_, std::move(body), std::move(head), std::move(log_probs), std::move(top), std::move(draft));
}

Pipeline PipelineBuilder::of(std::vector<Pipeline::Stage> body) const { return Pipeline(backends_, std::move(body), {}, {}, {}); }

Pipeline PipelineBuilder::layers(const Cancel& cancel) const {
  std::vector<Pipeline::Stage> body;
  body.push_back(stage(placement_.stages.front().device, programs_.body(0, 0, Output::hidden), cancel));
  for (const StagePlan& plan : placement_.stages) {
    for (std::size_t layer = plan.first; layer < plan.last; ++layer) add_stages(body, plan.device, programs_.layer(layer), cancel);
  }
  return of(std::move(body));
}

std::size_t PipelineBuilder::device_of(std::size_t layer) const {
  const auto& stages = placement_.stages;
  return std::find_if(stages.begin(), stages.end(), [&](const StagePlan& stage) { return layer < stage.last; })->device;
}

}  // namespace pumice::engine
