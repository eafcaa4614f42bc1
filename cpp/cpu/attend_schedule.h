// Divides the attention of one batch, for all layers with one AttendShape, into tasks. A unit is the attention of some query rows of one
// segment to one kv head. The keys of a unit are processed chunk by chunk. If there are few units with many chunks (for example one row
// with a long past), each chunk of a unit is a task of its own, and MergeStep merges the results.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/lowering.h"

namespace pumice::cpu {

// The keys [first, end) that one row attends to.
struct Keys {
  std::int64_t first, end;
  std::int64_t first_chunk() const { return first / kChunkKeys; }
  std::int64_t last_chunk() const { return (end - 1) / kChunkKeys; }
};
Keys keys_of(const AttendShape& shape, const Segment& segment, std::int64_t row);

struct AttendUnit {
  std::size_t segment;
  int kv_head;
  std::int64_t row, rows;    // query rows [row, row + rows) of the segment
  std::int64_t head, heads;  // query heads [head, head + heads) of the kv head's group
  std::int64_t first_chunk, last_chunk;
};

struct AttendSchedule {
  std::vector<std::int64_t> first_unit;  // index of each segment's first unit; the last element is the total number of units
  std::int64_t units = 0, units_per_task = 1, most_chunks = 1;
  bool split = false;
  // A piece is one chunk of one unit. `partial` is the offset, in floats, of the piece's results in the buffer of all partial results.
  struct Piece {
    std::int64_t unit, chunk, partial;
  };
  std::vector<Piece> pieces;
  std::vector<std::int64_t> first_piece;  // index of each unit's first piece; the last element is the total number of pieces
  std::int64_t partial_floats = 0;

  void arrange(const AttendShape& shape, const Batch& batch, int threads);
  AttendUnit unit(const AttendShape& shape, const Batch& batch, std::int64_t index) const;
  std::int64_t first_partial(std::int64_t unit) const {
    return pieces[static_cast<std::size_t>(first_piece[static_cast<std::size_t>(unit)])].partial;
  }
};

}  // namespace pumice::cpu
