// Runs a lowered program for a batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"
#include "cpu/buffer.h"
#include "cpu/cache_store.h"
#include "cpu/lowering.h"
#include "cpu/packed_weights.h"
#include "cpu/shares.h"
#include "cpu/team.h"

namespace pumice::cpu {

// How products are cut; bench/ops_bench.cpp cuts its own the same way.
inline constexpr std::int64_t kNarrowRows = 8;   // up to here a product is bound by reading weights, and takes all rows together
inline constexpr std::int64_t kBlockRows = 96;   // token rows of one product: a multiple of 4 and of 6, the kernels' tiles
inline constexpr std::int64_t kBlockGroups = 4;  // 64 outputs x 96 rows x 4 bytes = 24 KiB: the tile stays in L1 for its epilogue
inline constexpr std::int64_t kTileGroups = 2;   // of the kernels' widest tile: an odd number of groups leaves half of the last one unused
static_assert(kBlockGroups % kTileGroups == 0);
std::int64_t block_rows(std::int64_t rows);  // of each block but the last, for more rows than kNarrowRows: blocks as even as tiles allow

// How attention of one shape is divided for one batch. A unit is some query rows of one segment and kv head; it takes its keys chunk by
// chunk. When there are few units and many chunks (one row, a long past) the chunks of a unit go to several tasks and are merged later.
struct AttendSchedule {
  std::vector<std::int64_t> first_unit;  // per segment, and the total
  std::int64_t units = 0, units_per_task = 1, most_chunks = 1;
  bool split = false;
  struct Piece { std::int64_t unit, chunk, partial; };  // partial: floats from the start of the shared partials
  std::vector<Piece> pieces;
  std::vector<std::int64_t> first_piece;  // per unit, and the total
  std::int64_t partial_floats = 0;
};

// Rows of one segment on one page.
struct PageRun {
  std::int32_t segment, first, rows, position;
};

// Everything about a batch that its steps share, made before the first step. Reused from run to run: nothing is allocated per token.
struct BatchLayout {
  std::int64_t rows[3] = {};  // by Rows
  std::vector<AttendSchedule> attends;
  std::vector<PageRun> page_runs;
  std::vector<std::int64_t> first_page;  // per segment, in the list of all pages; and the total
  std::vector<std::uint64_t> area_at, turns_at;
  std::uint64_t kept_at = 0, partials_at = 0, threads_at = 0, thread_bytes = 0;
  std::uint64_t total = 0;  // bytes of scratch

  void arrange(const CpuPlan& plan, const Batch& batch, int threads);
};

std::uint64_t scratch_capacity(std::uint64_t needed);  // what a workspace takes for so many bytes

class ScratchSpace final : public Workspace {
 public:
  ScratchSpace(Crew crew, int threads) : crew(crew), threads(crew == Crew::team ? threads : 1), shares(this->threads) {}
  std::uint64_t bytes() const { return scratch.bytes(); }

  const Crew crew;
  const int threads;
  Shares shares;  // of the products of few rows
  BatchLayout layout;
  std::vector<std::uint8_t*> pages;  // of all segments
  Buffer scratch;
  int far_too_large = 0;  // runs in a row
  std::atomic<bool> busy{false};

  void fit();  // scratch for layout.total
};

class ProgramExecutable final : public Executable {
 public:
  ProgramExecutable(Program program, std::shared_ptr<const PackedWeights> weights, Compute compute, std::shared_ptr<TeamHolder> team);
  void run(Workspace& workspace, CacheStore* caches, const Batch& batch, const Io& io, const Cancel& cancel) const override;

  const CpuPlan& plan() const { return plan_; }
  const PackedWeights& weights() const { return *weights_; }
  const float* ones() const { return ones_.data(); }
  const float* zeros() const { return zeros_.data(); }
  const float* folded_bias(std::int32_t i) const { return folded_biases_[static_cast<std::size_t>(i)].data(); }

 private:
  void fold_bias(ProductPart& part, float scale);

  Program program_;
  std::shared_ptr<const PackedWeights> weights_;
  WeightShapes shapes_;  // of weights_
  CpuPlan plan_;
  std::shared_ptr<TeamHolder> team_;
  std::vector<float> ones_, zeros_;  // for norms without weight or bias
  std::vector<std::vector<float>> folded_biases_;
};

}  // namespace pumice::cpu
