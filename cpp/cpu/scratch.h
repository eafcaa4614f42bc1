// The memory of a batch: what lies where in one piece of scratch, made before the first step and reused from run to run, so that nothing
// is allocated per token.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "cpu/attend_schedule.h"
#include "cpu/buffer.h"
#include "cpu/lowering.h"
#include "cpu/shares.h"

namespace pumice::cpu {

inline constexpr std::int64_t kLine = 64;
inline constexpr std::int64_t kTileFloats = 8 * 1024;  // scratch of a thread for the second product of a gated step

std::uint64_t align_line(std::uint64_t bytes);

// Rows of one segment on one page.
struct PageRun {
  std::int32_t segment, first, rows, position;
};

struct BatchLayout {
  std::int64_t rows[3] = {};  // by Rows
  std::vector<AttendSchedule> attends;
  std::vector<PageRun> page_runs;
  std::vector<std::int64_t> first_page;  // per segment, in the list of all pages; and the total
  std::int64_t most_pages = 1;           // of a segment
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

}  // namespace pumice::cpu
