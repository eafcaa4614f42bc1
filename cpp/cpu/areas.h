// Assigns areas of scratch memory to the slots of a plan and to the elements of CpuPlan::quantized, CpuPlan::pairs and CpuPlan::sketches.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program_check.h"
#include "cpu/lowering.h"

namespace pumice::cpu {

// The first and the last operation that use each element of CpuPlan::quantized, CpuPlan::pairs and CpuPlan::sketches.
struct PlanLives {
  std::vector<Life> quantized, pairs, sketches;
};

// Assigns an area to every slot that is used, and to every element that `lives` describes. Slots and elements that are not in use at the
// same time share areas. If several existing areas are free, the area with the closest row size is used. `output` is the index of the slot
// in the caller's memory, or -1 if there is none. `tail_in_blocks` is true if the steps of the tail (CpuPlan::tail) run on one block of
// rows after another.
void give_areas(CpuPlan& plan, const PlanLives& lives, std::int32_t output, bool tail_in_blocks);

}  // namespace pumice::cpu
