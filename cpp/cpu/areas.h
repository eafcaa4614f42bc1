// Where a plan's slots, codes and rows of pairs lie in scratch memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program_check.h"
#include "cpu/lowering.h"

namespace pumice::cpu {

// From which operation to which each of CpuPlan::quantized, pairs and sketches is in use.
struct PlanLives {
  std::vector<Life> quantized, pairs, sketches;
};

// Gives an area to every slot that is used, and to all that `lives` names. Those that are not in use at the same time share areas. If
// several existing areas are free, the one with the closest row size is taken. `output` is the slot that lies in the caller's memory, or
// -1. `tail_in_blocks` says whether the plan's tail runs block by block.
void give_areas(CpuPlan& plan, const PlanLives& lives, std::int32_t output, bool tail_in_blocks);

}  // namespace pumice::cpu
