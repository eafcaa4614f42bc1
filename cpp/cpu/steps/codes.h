// Rows of integer codes ("code rows") to which the activations of products are quantized. CodeRows has the addresses of a QuantizedPlace's
// code rows in scratch memory, and the function that quantizes.
#pragma once

#include "cpu/steps/run.h"

namespace pumice::cpu {

struct CodeRows {
  CodeRows(const Run& run, std::int32_t index)
      : run(run), place(run.plan.quantized[static_cast<std::size_t>(index)]), at(run.area(place.area)) {
    const std::int64_t all = run.layout().rows[static_cast<int>(place.rows)];
    rows = place.pairs * place.terms() * (run.plan.areas[static_cast<std::size_t>(place.area)].in_blocks ? std::min(all, kTailRows) : all);
  }

  // Returns the index of the first code row for row r of the batch (or for pair r of a row and an expert).
  std::int64_t row(std::int64_t r) const { return place.terms() * (r - run.first_row(place.area)); }
  // int8() and fixed() return the codes of columns `col` and later. `col` must be the first column of a block.
  QuantRows int8(std::int64_t col) const;
  FixedRows fixed(std::int64_t col) const;
  QuantRows int8() const { return int8(0); }
  FixedRows fixed() const { return fixed(0); }
  // Returns true if 8-bit codes are stored as bytes, and false if they are stored as 16-bit words. This depends on the instruction set.
  bool as_bytes() const { return run.kernels.matrix.bytes.of_bytes != nullptr; }
  ByteRows bytes() const;
  FixedRows words() const;

  // Quantizes rows [first, first + count) of the batch, or these pairs of a row and an expert.
  void quantize(const float* in, std::int64_t in_stride, std::int64_t first, std::int64_t count) const;

  const Run& run;
  const QuantizedPlace& place;
  std::uint8_t* at;
  std::int64_t rows;  // number of code rows
};

}  // namespace pumice::cpu
