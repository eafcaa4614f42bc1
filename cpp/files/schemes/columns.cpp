#include "files/schemes/columns.h"

#include <algorithm>
#include <cstring>

#include "files/schemes/codes.h"

namespace pumice::files::schemes {
namespace {

constexpr std::int64_t kMultiple = 64;    // of rows that are read at once: a word of bits ends where they end
constexpr std::int64_t kCodes = 8 << 20;  // in the rows that are read at once
constexpr std::size_t kAlign = 64;        // of each tensor's part of a slab

std::int64_t height(const ColumnTensor& each) { return each.tensor.shape[0]; }
std::int64_t width(const ColumnTensor& each) { return each.tensor.shape[1]; }
std::int64_t value_bytes(const ColumnTensor& each) { return static_cast<std::int64_t>(each.tensor.bytes) / height(each) / width(each); }
std::int64_t first_column(const ColumnTensor& each, std::int64_t row) { return row * each.bits / 32; }

// Writes the columns of `in`, [height, width], as the rows of `out`.
template <class Value>
void turn(const std::uint8_t* in, std::size_t height, std::size_t width, std::uint8_t* out) {
  constexpr std::size_t kTile = 64 / sizeof(Value);  // values of a line of the cache
  for (std::size_t top = 0; top < height; top += kTile) {
    const std::size_t bottom = std::min(height, top + kTile);
    for (std::size_t col = 0; col < width; ++col) {
      for (std::size_t row = top; row < bottom; ++row)
        std::memcpy(out + (col * height + row) * sizeof(Value), in + (row * width + col) * sizeof(Value), sizeof(Value));
    }
  }
}

}  // namespace

Columns::Columns(std::vector<ColumnTensor> tensors, std::int64_t rows, std::int64_t cols, std::shared_ptr<Slices> slices)
    : tensors_(std::move(tensors)),
      rows_(rows),
      at_once_(std::min(rows, std::max(kMultiple, kCodes / cols / kMultiple * kMultiple))),
      slices_(std::move(slices)) {}

// Returns the bytes of a tensor's part of a slab of so many rows.
std::size_t Columns::bytes(const ColumnTensor& each, std::int64_t rows) const {
  const auto size = static_cast<std::size_t>((rows * each.bits + 31) / 32 * height(each) * value_bytes(each));
  return (size + kAlign - 1) / kAlign * kAlign;
}

const std::uint8_t* Columns::Slab::column(std::size_t i, std::int64_t row) const {
  const std::uint8_t* at = bytes_->data();
  for (std::size_t before = 0; before < i; ++before) at += of_.bytes(of_.tensors_[before], end_ - begin_);
  const ColumnTensor& each = of_.tensors_[i];
  return at + (first_column(each, row) - first_column(each, begin_)) * height(each) * value_bytes(each);
}

Columns::Slab Columns::with(std::span<const File> files, std::int64_t row) const {
  const std::int64_t slice = row / at_once_, begin = slice * at_once_, end = std::min(rows_, begin + at_once_);
  return {*this, begin, end, slices_->of(this, slice, [&] { return read(files, begin, end); })};
}

std::vector<std::uint8_t> Columns::read(std::span<const File> files, std::int64_t begin, std::int64_t end) const {
  std::size_t all = 0;
  for (const ColumnTensor& each : tensors_) all += bytes(each, end - begin);
  std::vector<std::uint8_t> slab(all), lines;
  std::uint8_t* out = slab.data();
  for (const ColumnTensor& each : tensors_) {
    const std::int64_t first = first_column(each, begin), columns = (end * each.bits + 31) / 32 - first, value = value_bytes(each);
    const auto line = static_cast<std::size_t>(columns * value);
    lines.resize(static_cast<std::size_t>(height(each)) * line);
    if (columns == width(each)) {
      read_bytes(files, each.tensor, 0, lines.size(), lines.data());
    } else {
      for (std::int64_t i = 0; i < height(each); ++i)
        read_bytes(files, each.tensor, static_cast<std::uint64_t>((i * width(each) + first) * value), line,
                   lines.data() + static_cast<std::size_t>(i) * line);
    }
    const auto turned = value == 4 ? turn<std::uint32_t> : turn<std::uint16_t>;
    turned(lines.data(), static_cast<std::size_t>(height(each)), static_cast<std::size_t>(columns), out);
    out += bytes(each, end - begin);
  }
  return slab;
}

}  // namespace pumice::files::schemes
