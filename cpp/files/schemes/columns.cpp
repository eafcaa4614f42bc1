#include "files/schemes/columns.h"

#include <algorithm>
#include <cstring>

#include "files/schemes/codes.h"

namespace pumice::files::schemes {
namespace {

constexpr std::int64_t kMultiple = 64;    // of rows that are read at once: a word of bits ends where they end
constexpr std::int64_t kCodes = 8 << 20;  // in the rows that are read at once
constexpr std::int64_t kLine = 64;        // bytes of a line of the cache

std::int64_t height(const ColumnTensor& each) { return each.tensor.shape[0]; }
std::int64_t width(const ColumnTensor& each) { return each.tensor.shape[1]; }
std::int64_t value_bytes(const ColumnTensor& each) { return static_cast<std::int64_t>(each.tensor.bytes) / height(each) / width(each); }
// The columns in which the bits of a row begin, and end.
std::int64_t first_column(const ColumnTensor& each, std::int64_t row) { return row * each.bits / 32; }
std::int64_t end_column(const ColumnTensor& each, std::int64_t end) { return (end * each.bits + 31) / 32; }

// Writes the first `width` columns of `in`, whose lines are `stride` bytes apart, as rows of `height` values.
template <class Value>
void turn(const std::uint8_t* in, std::int64_t stride, std::int64_t height, std::int64_t width, std::uint8_t* out) {
  constexpr std::int64_t kTile = kLine / static_cast<std::int64_t>(sizeof(Value));
  for (std::int64_t top = 0; top < height; top += kTile) {
    const std::int64_t bottom = std::min(height, top + kTile);
    for (std::int64_t col = 0; col < width; ++col) {
      for (std::int64_t row = top; row < bottom; ++row)
        std::memcpy(out + (col * height + row) * static_cast<std::int64_t>(sizeof(Value)),
                    in + row * stride + col * static_cast<std::int64_t>(sizeof(Value)), sizeof(Value));
    }
  }
}

}  // namespace

Columns::Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::int64_t cols, std::shared_ptr<Slices> slices)
    : tensors_(std::move(tensors)),
      rows_(rows),
      at_once_(std::min(rows, std::max(kMultiple, kCodes / cols / kMultiple * kMultiple))),
      slices_(std::move(slices)) {}

// Lines that are a multiple of 512 bytes apart would have the same column in a few places of the cache.
Columns::Part Columns::part_of(const ColumnTensor& each, std::int64_t begin, std::int64_t end) const {
  Part part{.first = first_column(each, begin)};
  part.columns = end_column(each, end) - part.first;
  part.stride = part.columns * value_bytes(each);
  if (part.stride % 512 == 0) part.stride += kLine;
  part.bytes = part.stride * height(each);
  return part;
}

Columns::Turned Columns::Slab::turned(std::size_t i, std::int64_t first, std::int64_t end) const {
  const std::uint8_t* at = bytes_->data();
  for (std::size_t before = 0; before < i; ++before) at += of_.part_of(of_.tensors_[before], begin_, end_).bytes;
  const ColumnTensor& each = of_.tensors_[i];
  const Part part = of_.part_of(each, begin_, end_);
  Turned turned;
  turned.bits_ = each.bits;
  turned.first_ = first_column(each, first);
  turned.column_bytes_ = height(each) * value_bytes(each);
  const std::int64_t columns = end_column(each, end) - turned.first_;
  turned.bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(columns * turned.column_bytes_));
  const auto write = value_bytes(each) == 4 ? turn<std::uint32_t> : value_bytes(each) == 2 ? turn<std::uint16_t> : turn<std::uint8_t>;
  write(at + (turned.first_ - part.first) * value_bytes(each), part.stride, height(each), columns, turned.bytes_.get());
  return turned;
}

Columns::Slab Columns::with(std::span<const File> files, std::int64_t row) const {
  const std::int64_t slice = row / at_once_, begin = slice * at_once_, end = std::min(rows_, begin + at_once_);
  return {*this, begin, end, slices_->of(this, slice, [&](std::vector<std::uint8_t>& slab) { read(files, begin, end, slab); })};
}

void Columns::read(std::span<const File> files, std::int64_t begin, std::int64_t end, std::vector<std::uint8_t>& slab) const {
  std::int64_t all = 0;
  for (const ColumnTensor& each : tensors_) all += part_of(each, begin, end).bytes;
  slab.resize(static_cast<std::size_t>(all));
  std::uint8_t* out = slab.data();
  for (const ColumnTensor& each : tensors_) {
    const Part part = part_of(each, begin, end);
    const std::int64_t value = value_bytes(each);
    for (std::int64_t i = 0; i < height(each); ++i, out += part.stride)
      read_bytes(files, each.tensor, static_cast<std::uint64_t>((i * width(each) + part.first) * value),
                 static_cast<std::uint64_t>(part.columns * value), out);
  }
}

}  // namespace pumice::files::schemes
