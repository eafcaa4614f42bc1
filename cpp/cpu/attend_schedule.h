// How the attention of one batch is divided into tasks, for one shape. A unit is some query rows of one segment and kv head; its keys are
// processed chunk by chunk. When there are few units and many chunks (one row, a long past), the chunks of a unit go to several tasks,
// whose results are merged later.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/lowering.h"

namespace pumice::cpu {

// The keys [first, end) that one row sees.
struct Keys {
  std::int64_t first, end;
  std::int64_t first_chunk() const { return first / kChunkKeys; }
  std::int64_t last_chunk() const { return (end - 1) / kChunkKeys; }
};
Keys keys_of(const AttendShape& shape, const Segment& segment, std::int64_t row);

struct AttendUnit {
  std::size_t segment;
  int kv_head;
  std::int64_t row, rows;    // of the segment
  std::int64_t head, heads;  // of the group
  std::int64_t first_chunk, last_chunk;
};

struct AttendSchedule {
  std::vector<std::int64_t> first_unit;  // per segment, and the total
  std::int64_t units = 0, units_per_task = 1, most_chunks = 1;
  bool split = false;
  struct Piece {
    std::int64_t unit, chunk, partial;
  };  // partial: floats from the start of the shared partials
  std::vector<Piece> pieces;
  std::vector<std::int64_t> first_piece;  // per unit, and the total
  std::int64_t partial_floats = 0;

  void arrange(const AttendShape& shape, const Batch& batch, int threads);
  AttendUnit unit(const AttendShape& shape, const Batch& batch, std::int64_t index) const;
  std::int64_t first_partial(std::int64_t unit) const {
    return pieces[static_cast<std::size_t>(first_piece[static_cast<std::size_t>(unit)])].partial;
  }
};

}  // namespace pumice::cpu
