#include "files/schemes/columns.h"

#include <algorithm>
#include <cstring>

#include "core/checked.h"
#include "files/schemes/codes.h"

namespace pumice::files::schemes {
namespace {

// The number of rows in a slab is a multiple of kMultiple. (A slab is the memory of the rows that are read at once, Columns::Slab.) In each
// line, the bits of 64 rows fill whole words of 32 bits, so no word belongs to two slabs.
constexpr std::int64_t kMultiple = 64;
// The size of a slab in bytes. A slab of this size has all columns of most matrices, so that one call can read many whole lines. Small
// reads are slow: one of 2 KiB takes 0.9 us, of which 0.7 us is the call.
constexpr std::int64_t kSlabBytes = 16 << 20;
// The amount that a job reads: kJobBytes, which fit into the second-level cache, but at least kJobLines lines, so that the job writes 1 KiB
// or more to each strip. (A job reads some lines of a tensor, and writes them to the strips of a slab, Columns::Part.)
constexpr std::int64_t kJobBytes = 128 << 10, kJobLines = 16;
constexpr std::int64_t kLine = 64;  // number of bytes in a line of the cache

std::int64_t height(const ColumnTensor& each) { return each.tensor.shape[0]; }
std::int64_t width(const ColumnTensor& each) { return each.tensor.shape[1]; }
std::int64_t value_bytes(const ColumnTensor& each) { return static_cast<std::int64_t>(each.tensor.bytes) / height(each) / width(each); }
// first_column() returns the column of the tensor in which the bits of row `row` of the matrix begin. end_column() returns the first column
// after the bits of row `end` - 1.
std::int64_t first_column(const ColumnTensor& each, std::int64_t row) { return row * each.bits / 32; }
std::int64_t end_column(const ColumnTensor& each, std::int64_t end) { return (end * each.bits + 31) / 32; }

// Transposes a square of values: swaps value i of word j and value j of word i, for all i and j. A word of 8 bytes has as many values as
// there are words.
template <class Value>
void turn_words(std::uint64_t* words) {
  constexpr int kCount = 8 / sizeof(Value), kBits = 8 * sizeof(Value);
  std::uint64_t mask = ~std::uint64_t{0} >> 32;  // selects, within a word, the values at positions p with (p & half) == 0
  for (int half = kCount / 2; half > 0; half /= 2, mask ^= mask << (half * kBits)) {
    for (int i = 0; i < kCount; ++i) {
      if (i & half) continue;
      const std::uint64_t other = (words[i] >> (half * kBits) ^ words[i + half]) & mask;
      words[i + half] ^= other;
      words[i] ^= other << (half * kBits);
    }
  }
}

// Writes a transposed copy of `width` columns of a strip. The strip has `height` lines, which are `wide` bytes apart. Each column becomes
// `height` values one after another.
template <class Value>
void turn(const std::uint8_t* strip, std::int64_t wide, std::int64_t height, std::int64_t width, std::uint8_t* out) {
  constexpr std::int64_t kSize = sizeof(Value), kCount = 8 / kSize, kTile = kLine / kSize;
  // `column` is the number of bytes in a column. `whole` is `height`, rounded down to a number of values that fills whole cache lines.
  const std::int64_t column = height * kSize, whole = height / kTile * kTile;
  std::int64_t col = 0;
  for (; col + kCount <= width; col += kCount) {
    for (std::int64_t line = 0; line < whole; line += kCount) {
      std::uint64_t words[kCount];
      for (std::int64_t i = 0; i < kCount; ++i) std::memcpy(words + i, strip + (line + i) * wide + col * kSize, 8);
      turn_words<Value>(words);
      for (std::int64_t i = 0; i < kCount; ++i) std::memcpy(out + (col + i) * column + line * kSize, words + i, 8);
    }
  }
  for (std::int64_t rest = 0; rest < width; ++rest) {
    for (std::int64_t line = rest < col ? whole : 0; line < height; ++line)
      std::memcpy(out + rest * column + line * kSize, strip + line * wide + rest * kSize, kSize);
  }
}

}  // namespace

Columns::Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::shared_ptr<Slices> slices)
    : tensors_(std::move(tensors)), rows_(rows), slices_(std::move(slices)) {
  std::int64_t bytes = 0;  // number of bytes in kMultiple rows
  for (const ColumnTensor& each : tensors_) bytes += end_column(each, kMultiple) * height(each) * value_bytes(each);
  at_once_ = std::min(rows, std::max<std::int64_t>(1, kSlabBytes / bytes) * kMultiple);
}

// Returns the parts of a slab that has rows [begin, end), one part for each tensor. Strips that are a multiple of 4 KiB apart would begin
// in the same set of the cache, so such strips are put one cache line further apart.
std::vector<Columns::Part> Columns::parts_of(std::int64_t begin, std::int64_t end) const {
  std::vector<Part> parts;
  for (const ColumnTensor& each : tensors_) {
    const std::int64_t first = first_column(each, begin), columns = end_column(each, end) - first;
    const std::int64_t bytes = columns * value_bytes(each), wide = std::min(bytes, kLine), lines = std::max(kJobBytes / bytes, kJobLines);
    std::int64_t stride = round_up(height(each) * wide, kLine);
    if (stride % 4096 == 0) stride += kLine;
    parts.push_back({.at = parts.empty() ? 0 : parts.back().end(),
                     .first = first,
                     .columns = columns,
                     .strips = ceil_div(bytes, kLine),
                     .wide = wide,
                     .stride = stride,
                     .lines = lines,
                     .jobs = ceil_div(height(each), lines)});
  }
  return parts;
}

Columns::Turned Columns::Slab::turned(std::size_t i, std::int64_t first, std::int64_t end) const {
  const ColumnTensor& each = of_.tensors_[i];
  const Part& part = parts_[i];
  const std::int64_t value = value_bytes(each), in_strip = kLine / value;
  Turned turned;
  turned.bits_ = each.bits;
  turned.first_ = first_column(each, first);
  turned.column_bytes_ = height(each) * value;
  const std::int64_t columns = end_column(each, end) - turned.first_;
  turned.bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(columns * turned.column_bytes_));
  const auto write = value == 4 ? turn<std::uint32_t> : value == 2 ? turn<std::uint16_t> : turn<std::uint8_t>;
  for (std::int64_t done = 0; done < columns;) {
    const std::int64_t col = turned.first_ + done - part.first, now = std::min(columns - done, in_strip - col % in_strip);
    write(bytes_.get() + part.at + col / in_strip * part.stride + col % in_strip * value, part.wide, height(each), now,
          turned.bytes_.get() + done * turned.column_bytes_);
    done += now;
  }
  return turned;
}

Columns::Slab Columns::with(std::span<const File> files, std::int64_t row) const {
  const std::int64_t slice = row / at_once_, begin = slice * at_once_;
  Slab slab(*this);
  slab.end_ = std::min(rows_, begin + at_once_);
  slab.parts_ = parts_of(begin, slab.end_);
  std::int64_t jobs = 0;
  for (const Part& part : slab.parts_) jobs += part.jobs;
  const auto job = [&](std::int64_t index, std::uint8_t* bytes) {
    std::size_t i = 0;
    for (; index >= slab.parts_[i].jobs; ++i) index -= slab.parts_[i].jobs;
    read(files, tensors_[i], slab.parts_[i], index, bytes);
  };
  slab.bytes_ = slices_->of(this, slice, {.size = static_cast<std::size_t>(slab.parts_.back().end()), .jobs = jobs, .job = job});
  return slab;
}

// Does one of the part's jobs: reads some lines of the tensor, and writes them to the strips of the slab.
void Columns::read(std::span<const File> files, const ColumnTensor& each, const Part& part, std::int64_t job, std::uint8_t* slab) const {
  const std::int64_t top = job * part.lines, count = std::min(part.lines, height(each) - top), value = value_bytes(each);
  const std::int64_t across = width(each) * value, bytes = part.columns * value;  // number of bytes in a line; number of them that are read
  thread_local std::vector<std::uint8_t> lines;  // kept for the next call, because the system clears new memory, which takes time
  lines.resize(std::max(lines.size(), static_cast<std::size_t>(count * bytes)));
  const std::int64_t at_once = bytes == across ? count : 1;  // number of lines that one call reads: all if they are read whole
  for (std::int64_t line = 0; line < count; line += at_once)
    read_bytes(files, each.tensor, static_cast<std::uint64_t>((top + line) * across + part.first * value),
               static_cast<std::uint64_t>(at_once * bytes), lines.data() + line * bytes);
  for (std::int64_t strip = 0; strip < part.strips; ++strip) {
    const std::uint8_t* from = lines.data() + strip * kLine;
    std::uint8_t* to = slab + part.at + strip * part.stride + top * part.wide;
    const std::int64_t size = std::min(part.wide, bytes - strip * kLine);
    for (std::int64_t line = 0; line < count; ++line, from += bytes, to += part.wide)
      size == kLine ? std::memcpy(to, from, kLine) : std::memcpy(to, from, static_cast<std::size_t>(size));  // a constant size is faster
  }
}

}  // namespace pumice::files::schemes
