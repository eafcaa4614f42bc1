// The scratch memory of a run and its layout. The memory is allocated before the first step and reused by later runs, so that generating a
// token allocates nothing.
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
// Number of floats in a tile that holds part of a product, for example of the second product of a gated step.
inline constexpr std::int64_t kTileFloats = 8 * 1024;

std::uint64_t align_line(std::uint64_t bytes);

// Consecutive rows of one segment whose positions lie on the same cache page. `first` is the first of these rows in the batch, and
// `position` its position.
struct PageRun {
  std::int32_t segment, first, rows, position;
};

struct BatchLayout {
  std::int64_t rows[3] = {};  // number of rows of each kind (Rows)
  std::vector<AttendSchedule> attends;
  std::vector<PageRun> page_runs;
  // Index of each segment's first page in ScratchSpace::pages; the last element is the total.
  std::vector<std::int64_t> first_page;
  std::int64_t most_pages = 1;  // number of pages of the longest segment
  std::int64_t most_rows = 1;   // number of rows of the longest segment
  // Names that end in _at are offsets in the scratch memory, in bytes.
  std::vector<std::uint64_t> area_at, turns_at;
  std::uint64_t kept_at = 0, partials_at = 0, threads_at = 0, thread_bytes = 0;
  std::uint64_t total = 0;  // bytes of scratch memory

  void arrange(const CpuPlan& plan, const Batch& batch, int threads);
};

// The pairs of a row and one of its experts, ordered by expert, then by row, then by choice. One product computes the pairs of a piece. The
// operations Experts of a program use this memory one after another.
struct ExpertPairs {
  struct Piece {
    std::int32_t expert, first, count;  // pairs [first, first + count), at most kBlockRows
  };
  std::vector<std::int32_t> rows, choices;  // of each pair: its row, and which choice of the row it is
  std::vector<std::int32_t> places;         // the index of each pair, by row * chosen + choice
  std::vector<std::int32_t> ends;           // the end of each expert's pairs
  std::vector<Piece> pieces;
  std::int32_t chosen = 0;
  void reserve(std::int64_t rows, std::int32_t chosen, std::int32_t experts);
};

// Returns the number of floats of scratch that a thread needs for Scan: two factors for each row, and two strips of a state.
std::int64_t scan_floats(std::int32_t key_dim, std::int64_t rows);

// Returns the bytes that a workspace allocates when it needs `needed` bytes.
std::uint64_t scratch_capacity(std::uint64_t needed);

class ScratchSpace final : public Workspace {
 public:
  ScratchSpace(Crew crew, int threads) : crew(crew), threads(crew == Crew::team ? threads : 1), shares(this->threads) {}
  std::uint64_t bytes() const { return scratch.bytes(); }

  const Crew crew;
  const int threads;
  Shares shares;  // hands out the tasks of products with few rows
  BatchLayout layout;
  std::vector<std::uint8_t*> pages;  // addresses of the pages of all segments, one segment after another
  ExpertPairs pairs;
  Buffer scratch;
  int far_too_large = 0;  // consecutive runs for which the scratch was far too large
  std::atomic<bool> busy{false};

  void fit();  // resizes `scratch` for layout.total bytes, if necessary
};

}  // namespace pumice::cpu
