#include "cpu/steps/codes.h"

#include "core/checked.h"

namespace pumice::cpu {

FixedRows CodeRows::fixed(std::int64_t col) const {
  FixedRows x{.codes = reinterpret_cast<std::int16_t*>(at), .rows = rows, .cols = place.cols};
  const std::int64_t blocks = rows * ceil_div(x.cols, kFixedBlock);
  x.scales = reinterpret_cast<float*>(x.codes + blocks * kFixedBlock);
  x.starts = reinterpret_cast<std::int32_t*>(x.scales + blocks);
  const std::int64_t skipped = col / kFixedBlock * rows;
  return {x.codes + skipped * kFixedBlock, x.scales + skipped, x.starts + skipped, rows, x.cols - col};
}

FixedRows CodeRows::words() const {
  FixedRows x{.codes = reinterpret_cast<std::int16_t*>(at), .rows = rows, .cols = place.cols};
  x.scales = reinterpret_cast<float*>(x.codes + rows * x.cols);
  x.starts = reinterpret_cast<std::int32_t*>(x.scales + rows * (x.cols / kByteBlock));
  return x;
}

ByteRows CodeRows::bytes() const {
  ByteRows x{.codes = at, .rows = rows, .cols = place.cols};
  x.scales = reinterpret_cast<float*>(x.codes + rows * x.cols);
  x.zeros = reinterpret_cast<std::int32_t*>(x.scales + rows * (x.cols / kByteBlock));
  return x;
}

QuantRows CodeRows::int8(std::int64_t col) const {
  QuantRows x{.codes = reinterpret_cast<std::int8_t*>(at), .rows = rows, .cols = place.cols};
  const std::int64_t blocks = rows * (x.cols / kQuantBlock);
  std::uint8_t* const scales = at + round_up(rows * x.cols, kLine);
  x.scales = reinterpret_cast<float*>(scales);
  x.scaled_sums = x.scales + blocks;
  x.sums = reinterpret_cast<std::int32_t*>(scales + round_up(2 * blocks * static_cast<std::int64_t>(sizeof(float)), kLine));
  const std::int64_t skipped = col / kQuantBlock * rows;
  return {x.codes + skipped * kQuantBlock, x.scales + skipped, x.sums + 2 * skipped, x.scaled_sums + skipped, rows, x.cols - col};
}

namespace {

// Quantizes a row x to two rows of codes c and c' with scales s and s', so that x ~ s c + s' c'. The second row holds the rounding errors
// of the first. These errors are at most s / 2, so s' <= s / 254.
void quantize_twice(const RowKernels& kernels, const float* in, std::int64_t row, const QuantRows& out) {
  constexpr std::int64_t kCols = 16 * kQuantBlock;
  float rest[kCols];
  for (std::int64_t c = 0; c < out.cols; c += kCols) {
    const std::int64_t block = c / kQuantBlock * out.rows;
    const QuantRows part{out.codes + block * kQuantBlock, out.scales + block, out.sums + 2 * block,
                         out.scaled_sums + block,         out.rows,           std::min(kCols, out.cols - c)};
    kernels.quantize(in + c, part.cols, 1, row, part);
    for (std::int64_t k = 0; k < part.cols; ++k) {
      const std::int64_t at = k / kQuantBlock * part.rows + row;
      rest[k] = in[c + k] - part.scales[at] * static_cast<float>(part.codes[at * kQuantBlock + k % kQuantBlock]);
    }
    kernels.quantize(rest, part.cols, 1, row + 1, part);
  }
}

}  // namespace

void CodeRows::quantize(const float* in, std::int64_t in_stride, std::int64_t first, std::int64_t count) const {
  const RowKernels& kernels = run.kernels.rows;
  switch (place.codes) {
    case Codes::int8:
      return kernels.quantize(in, in_stride, count, row(first), int8());
    case Codes::fixed:
      return kernels.quantize_fixed(in, in_stride, count, row(first), fixed());
    case Codes::bytes: {
      const Folded* folded = run.weights.matrix(place.folded).folded;
      const Turn turn = folded ? Turn{folded->scale.data(), folded->shift.data()} : Turn{};
      if (as_bytes()) return kernels.quantize_bytes(in, in_stride, count, row(first), turn, bytes());
      return kernels.quantize_words(in, in_stride, count, row(first), turn, words());
    }
    case Codes::two_int8: {
      const QuantRows out = int8();
      for (std::int64_t r = 0; r < count; ++r) quantize_twice(kernels, in + r * in_stride, row(first + r), out);
    }
  }
}

}  // namespace pumice::cpu
