// The data that the steps of a plan use during one run: the batch, the weights, the caches and the addresses of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/cancel.h"
#include "cpu/cache_store.h"
#include "cpu/kernels.h"
#include "cpu/lowering.h"
#include "cpu/packed_weights.h"
#include "cpu/scratch.h"
#include "cpu/steps/cut.h"

namespace pumice::cpu {

// Vectors that steps use in addition to the vectors of the weights.
struct Constants {
  std::vector<float> ones, zeros;                 // used if a norm has no weight or no bias
  std::vector<std::vector<float>> folded_biases;  // indexed by ProductPart::folded_bias
};

struct Run {
  const CpuPlan& plan;
  const PackedWeights& weights;
  const Constants& constants;
  const ScratchSpace& space;
  const PageStore* store;  // null if the program has no caches
  const Batch& batch;
  const Io& io;
  const Cancel& cancel;
  const Kernels& kernels;
  ExpertPairs& pairs;   // written by SortStep
  ExpertPass& experts;  // holds the lock of the ExpertCache from ReadExpertsStep to FoldStep of one operation

  // in_tail is true while the steps of the tail (CpuPlan::tail) run. These steps work on one block of rows after another, and tail_row is
  // the first row of the current block. Both members are written only between phases.
  bool in_tail = false;
  std::int64_t tail_row = 0;

  const BatchLayout& layout() const { return space.layout; }
  Range rows_of(Rows rows) const {
    const std::int64_t count = layout().rows[static_cast<int>(rows)];
    return in_tail ? Range{tail_row, std::min(kTailRows, count - tail_row)} : Range{0, count};
  }
  const SlotPlace& slot(const View& view) const { return plan.slots[static_cast<std::size_t>(view.slot)]; }
  std::int64_t stride(const View& view) const { return slot(view).stride; }
  std::uint8_t* area(std::int32_t a) const { return space.scratch.data() + layout().area_at[static_cast<std::size_t>(a)]; }
  std::int64_t first_row(std::int32_t a) const { return plan.areas[static_cast<std::size_t>(a)].in_blocks ? tail_row : 0; }
  float* row(const View& view, std::int64_t r) const {
    const SlotPlace& place = slot(view);
    if (place.area < 0) return io.out.data() + r * place.stride + view.col;
    return reinterpret_cast<float*>(area(place.area)) + (r - first_row(place.area)) * place.stride + view.col;
  }
  const float* vector_or(VectorId id, const std::vector<float>& otherwise) const {
    return id == VectorId::none ? otherwise.data() : weights.vector(id);
  }
  // These functions are for Top. reported() returns the reported ids of row r. allowed() returns a bit for each id, which is set if the id
  // is allowed in row r; it returns null if all ids are allowed.
  std::span<const std::int32_t> reported(std::int64_t r) const {
    if (batch.reported_first.empty()) return {};
    const auto at = static_cast<std::size_t>(r), first = static_cast<std::size_t>(batch.reported_first[at]);
    return batch.reported.subspan(first, static_cast<std::size_t>(batch.reported_first[at + 1]) - first);
  }
  const std::uint32_t* allowed(std::int64_t r) const {
    const std::int32_t first = batch.allowed_first.empty() ? -1 : batch.allowed_first[static_cast<std::size_t>(r)];
    return first < 0 ? nullptr : batch.allowed.data() + first;
  }
  std::uint8_t* scratch_of(int thread) const {
    return space.scratch.data() + layout().threads_at + static_cast<std::uint64_t>(thread) * layout().thread_bytes + kLine;
  }

  // Returns the position of row r in its sequence, and sets `at` to the index of the row's segment. No search is needed if `at` already is
  // this index, which is usual if rows are visited in order.
  std::int64_t position_of(std::int64_t r, std::size_t& at) const;
};

}  // namespace pumice::cpu
