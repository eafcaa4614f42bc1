// The scratch memory of a batch and its layout. It is allocated before the first step and reused by later runs, so that nothing is
// allocated for each token.
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
inline constexpr std::int64_t kTileFloats = 8 * 1024;  // floats of a thread's scratch for the second product of a gated step

std::uint64_t align_line(std::uint64_t bytes);

// Rows of one segment on one page.
struct PageRun {
  std::int32_t segment, first, rows, position;
};

struct BatchLayout {
  std::int64_t rows[3] = {};  // number of rows, by kind (Rows)
  std::vector<AttendSchedule> attends;
  std::vector<PageRun> page_runs;
  std::vector<std::int64_t> first_page;  // place of each segment's first page in the list of all pages; the last element is the total
  std::int64_t most_pages = 1;           // pages of the longest segment
  std::vector<std::uint64_t> area_at, turns_at;
  std::uint64_t kept_at = 0, partials_at = 0, threads_at = 0, thread_bytes = 0;
  std::uint64_t total = 0;  // bytes of scratch

  void arrange(const CpuPlan& plan, const Batch& batch, int threads);
};

std::uint64_t scratch_capacity(std::uint64_t needed);  // bytes that a workspace allocates when so many are needed

class ScratchSpace final : public Workspace {
 public:
  ScratchSpace(Crew crew, int threads) : crew(crew), threads(crew == Crew::team ? threads : 1), shares(this->threads) {}
  std::uint64_t bytes() const { return scratch.bytes(); }

  const Crew crew;
  const int threads;
  Shares shares;  // tasks of products with few rows
  BatchLayout layout;
  std::vector<std::uint8_t*> pages;  // pages of all segments
  Buffer scratch;
  int far_too_large = 0;  // consecutive runs for which the scratch was far too large
  std::atomic<bool> busy{false};

  void fit();  // makes scratch as large as layout.total needs
};

}  // namespace pumice::cpu
