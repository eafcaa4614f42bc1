// Declares cut() and task() for each kind of step. cut() runs on one thread before the step's tasks, and divides the work of this run into
// tasks. task() does one task. Tasks run on any thread and in any order. If a kind of step lacks one of the two functions, executor.cpp
// does not compile.
#pragma once

#include "cpu/steps/run.h"

namespace pumice::cpu {

#define PUMICE_STEP(Step)                 \
  Cut cut(const Run& run, const Step& s); \
  void task(const Run& run, const Step& s, const Cut& cut, std::int64_t index, int thread);

// rows.cpp has the steps that process each row independently
PUMICE_STEP(InputStep)
PUMICE_STEP(EmbedStep)
PUMICE_STEP(NormStep)
PUMICE_STEP(QuantizeStep)
PUMICE_STEP(MultiplyStep)
// products.cpp has the products with weights
PUMICE_STEP(LinearStep)
PUMICE_STEP(GatedStep)
PUMICE_STEP(HeadLinearStep)
// experts.cpp has the steps of Route and Experts
PUMICE_STEP(RouteStep)
PUMICE_STEP(SortStep)
PUMICE_STEP(ReadExpertsStep)
PUMICE_STEP(GatherStep)
PUMICE_STEP(ExpertsUpStep)
PUMICE_STEP(PairCodesStep)
PUMICE_STEP(ExpertsDownStep)
PUMICE_STEP(FoldStep)
// positions.cpp has the steps that apply rope, or store keys and values in pages
PUMICE_STEP(TurnsStep)
PUMICE_STEP(RopeStoreStep)
PUMICE_STEP(KeepStep)
// attention.cpp has the steps of Attend
PUMICE_STEP(AttendStep)
PUMICE_STEP(MergeStep)
// recurrent.cpp has Conv and Scan
PUMICE_STEP(ConvStep)
PUMICE_STEP(ScanStep)
// ends.cpp has the steps at the end of a program
PUMICE_STEP(SelectStep)
PUMICE_STEP(PoolStep)
PUMICE_STEP(LogProbStep)
PUMICE_STEP(TopStep)
// sketch.cpp has the steps that compute the largest logits of a head by means of a sketch
PUMICE_STEP(SketchActivationsStep)
PUMICE_STEP(BoundsStep)
PUMICE_STEP(SeedsStep)
PUMICE_STEP(RestStep)
#undef PUMICE_STEP

// Returns the address of one kv head in a page of scratch memory. Attention without a cache (in encoders) stores its keys and values in
// such pages, so that it runs the same code as attention with a cache.
std::uint8_t* kept_page(const Run& run, const Attend& op, std::int64_t page, int head);

}  // namespace pumice::cpu
