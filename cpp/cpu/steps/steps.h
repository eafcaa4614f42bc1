// cut() and task() for each step of a plan. cut() runs once, on one thread, before the step's tasks, and divides the step's work for this
// run. task() does one task; any thread calls it, in any order. A step that lacks one of the two does not compile (executor.cpp).
#pragma once

#include "cpu/steps/run.h"

namespace pumice::cpu {

#define PUMICE_STEP(Step)                 \
  Cut cut(const Run& run, const Step& s); \
  void task(const Run& run, const Step& s, const Cut& cut, std::int64_t index, int thread);

// rows.cpp: each row by itself
PUMICE_STEP(InputStep)
PUMICE_STEP(EmbedStep)
PUMICE_STEP(NormStep)
PUMICE_STEP(QuantizeStep)
PUMICE_STEP(MultiplyStep)
// products.cpp
PUMICE_STEP(LinearStep)
PUMICE_STEP(GatedStep)
// positions.cpp: ropes, and keys and values to their pages
PUMICE_STEP(TurnsStep)
PUMICE_STEP(RopeStoreStep)
PUMICE_STEP(KeepStep)
// attention.cpp
PUMICE_STEP(AttendStep)
PUMICE_STEP(MergeStep)
// ends.cpp: what a program gives
PUMICE_STEP(SelectStep)
PUMICE_STEP(PoolStep)
PUMICE_STEP(LogProbStep)
PUMICE_STEP(TopStep)
#undef PUMICE_STEP

// An encoder's keys and values are kept in scratch pages, so that its attention runs the same code as a decoder's.
std::uint8_t* kept_page(const Run& run, const Attend& op, std::int64_t page, int head);

}  // namespace pumice::cpu
