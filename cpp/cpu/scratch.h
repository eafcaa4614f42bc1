// The scratch memory of a run and its layout. The memory is allocated before the first step and reused by later runs, so that decoding a
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
// Number of floats in a thread's buffer for an intermediate result, for example for the second product of a gated step.
inline constexpr std::int64_t kTileFloats = 8 * 1024;

std::uint64_t align_line(std::uint64_t bytes);

// Consecutive rows of one segment whose positions are on the same cache page. `first` is the index of the first of these rows in the batch,
// and `position` is the position of that row.
struct PageRun {
  std::int32_t segment, first, rows, position;
};

struct BatchLayout {
  std::int64_t rows[3] = {};  // number of rows of each kind; indexed by the enum Rows
  std::vector<AttendSchedule> attends;
  std::vector<PageRun> page_runs;
  // Index of each segment's first page in ScratchSpace::pages; the last element is the total number of pages.
  std::vector<std::int64_t> first_page;
  std::int64_t most_pages = 1;  // number of pages of the segment with the most pages
  std::int64_t most_rows = 1;   // number of rows of the segment with the most rows
  // Members whose names end in _at are offsets in the scratch memory, in bytes.
  std::vector<std::uint64_t> area_at, turns_at;
  std::uint64_t kept_at = 0, partials_at = 0, threads_at = 0, thread_bytes = 0;
  std::uint64_t total = 0;  // number of bytes of scratch memory

  void arrange(const CpuPlan& plan, const Batch& batch, int threads);
};

// All pairs of a row and one of its experts, ordered by expert, then by row, then by choice. A Piece is a range of pairs of one expert that
// one product computes. All Experts operations of a program use the same object, one after another.
struct ExpertPairs {
  struct Piece {
    std::int32_t expert, first, count;  // pairs [first, first + count), at most kBlockRows
  };
  std::vector<std::int32_t> rows, choices;  // [pair]: the pair's row, and the index of the pair's expert among the row's choices
  std::vector<std::int32_t> places;         // [row * chosen + choice]: index of the pair
  std::vector<std::int32_t> ends;           // [expert]: index behind the last pair of the expert
  std::vector<Piece> pieces;
  std::int32_t chosen = 0;
  void reserve(std::int64_t rows, std::int32_t chosen, std::int32_t experts);
};

// Returns the number of floats of scratch memory that a thread needs for Scan: two factors for each row, and two strips of a state.
std::int64_t scan_floats(std::int32_t key_dim, std::int64_t rows);

// Returns the number of bytes that a workspace allocates when it needs `needed` bytes.
std::uint64_t scratch_capacity(std::uint64_t needed);

class ScratchSpace final : public Workspace {
 public:
  ScratchSpace(Crew crew, int threads) : crew(crew), threads(crew == Crew::team ? threads : 1), shares(this->threads) {}
  std::uint64_t bytes() const { return scratch.bytes(); }

  const Crew crew;
  const int threads;
  Shares shares;  // assigns the tasks of products with few rows to threads
  BatchLayout layout;
  std::vector<std::uint8_t*> pages;  // addresses of the pages of all segments, one segment after another
  ExpertPairs pairs;
  Buffer scratch;
  int far_too_large = 0;  // number of consecutive runs that needed less than a quarter of `scratch`
  std::atomic<bool> busy{false};

  void fit();  // reallocates `scratch` if it is smaller than layout.total, or was far too large for sixteen runs
};

}  // namespace pumice::cpu
