#include "files/schemes/codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/formats.h"
#include "files/made_tensor.h"
#include "files/text.h"

namespace pumice::files::schemes {
namespace {

constexpr std::int64_t kBlock = 32;  // weights in a block of the formats that codes become

// Which format holds scale * (code - zero), or scale * code + bias, exactly, and how its blocks store a code.
struct Target {
  Format format;
  int most_bits;  // of a code
  Offsets offsets;
  int low, high;  // code - zero, or the code beside a bias, must be in this range
};
constexpr Target kTargets[] = {
    {Format::Q4_0, 4, Offsets::middle, -8, 7}, {Format::Q5_0, 5, Offsets::middle, -16, 15}, {Format::Q8_0, 8, Offsets::middle, -128, 127},
    {Format::Q4_0, 3, Offsets::zeros, -8, 7},  {Format::Q5_0, 4, Offsets::zeros, -16, 15},  {Format::Q4_1, 4, Offsets::biases, 0, 15},
    {Format::Q5_1, 5, Offsets::biases, 0, 31},
};

const Target* target_of(const Codes& codes) {
  for (const Target& target : kTargets)
    if (target.offsets == codes.offsets && codes.bits <= target.most_bits) return &target;
  return nullptr;
}

// Returns why no format holds the weights exactly, or "".
std::string why_not_exact(const Codes& codes) {
  if (!target_of(codes))
    return str(codes.bits, codes.offsets == Offsets::zeros ? " bits with zero points" : " bits with biases", " have no format here");
  if (!codes.group_of.empty()) return "the columns of a group are not neighbours (act-order)";
  const std::int64_t group = codes.cols / codes.groups;
  if (group % kBlock != 0) return str("groups of ", group, " columns are not divided into blocks of ", kBlock);
  if (codes.scales.format == Format::F32) return "the scales are F32, and those of a block are half floats";
  return "";
}

class MadeOfCodes final : public MadeTensor {
 public:
  MadeOfCodes(Codes codes, std::shared_ptr<Slices> slices) : codes_(std::move(codes)), slices_(std::move(slices)) {
    packing = codes_.packing;
    not_exact = why_not_exact(codes_);
    if (not_exact.empty()) target_ = target_of(codes_);
  }

  Format format() const { return target_ ? target_->format : Format::F32; }

  void read(std::span<const File> files, std::int64_t first, std::int64_t count, std::uint8_t* out) const override {
    const auto bytes = static_cast<std::size_t>(row_bytes(format(), codes_.cols));
    if (codes_.rows_at_once == 0) return write(files, codes_.read(files, first, count), first, count, out);
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t slice = first / codes_.rows_at_once, begin = slice * codes_.rows_at_once;
      const std::int64_t rows = std::min(codes_.rows_at_once, codes_.rows - begin), now = std::min(end, begin + rows) - first;
      const Slices::Bytes made = slices_->of(this, slice, [&] {
        std::vector<std::uint8_t> all(static_cast<std::size_t>(rows) * bytes);
        write(files, codes_.read(files, begin, rows), begin, rows, all.data());
        return all;
      });
      std::memcpy(out, made->data() + static_cast<std::size_t>(first - begin) * bytes, static_cast<std::size_t>(now) * bytes);
      out += static_cast<std::size_t>(now) * bytes;
      first += now;
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_row(std::span<const File> files, std::int64_t row, const Parts&... parts) const {
    fail_at(ErrorKind::model_format, files[codes_.scales.file].path(), "tensor " + codes_.scales.name, std::nullopt, "row ", row, ": ",
            parts...);
  }

  void write(std::span<const File> files, const CodeRows& rows, std::int64_t first, std::int64_t count, std::uint8_t* out) const {
    const auto cols = static_cast<std::size_t>(codes_.cols), groups = static_cast<std::size_t>(codes_.groups);
    const float middle = static_cast<float>(1 << (codes_.bits - 1));
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row) {
      const std::uint8_t* code = rows.codes.data() + row * cols;
      const float* scale = rows.scales.data() + row * groups;
      const float* offset = rows.offsets.empty() ? nullptr : rows.offsets.data() + row * groups;
      for (std::size_t g = 0; g < groups; ++g) {
        if (!std::isfinite(scale[g]) || (offset && !std::isfinite(offset[g])))
          fail_row(files, first + static_cast<std::int64_t>(row), "group ", g, " has the scale ", scale[g],
                   offset ? str(" and the offset ", offset[g]) : "", "; finite numbers are needed");
      }
      if (target_) {
        for (std::size_t g = 0, group = cols / groups; g < groups; ++g)
          out = write_group(files, first + static_cast<std::int64_t>(row), {code + g * group, group}, scale[g], offset ? offset[g] : middle,
                            out);
        continue;
      }
      for (std::size_t col = 0; col < cols; ++col) {
        const std::size_t g = codes_.group_of.empty() ? col / (cols / groups) : static_cast<std::size_t>(codes_.group_of[col]);
        const float by = offset ? offset[g] : middle, at = static_cast<float>(code[col]);
        const float value = codes_.offsets == Offsets::biases ? scale[g] * at + by : scale[g] * (at - by);
        std::memcpy(out, &value, sizeof value);
        out += sizeof value;
      }
    }
  }

  // Returns the half float that equals `value`.
  std::uint16_t half(std::span<const File> files, std::int64_t row, float value) const {
    const std::uint16_t half = f32_to_f16(value);
    if (f16_to_f32(half) != value)
      fail_row(files, row, value, " is not equal to any half float, so ", name(target_->format), " cannot hold these weights exactly");
    return half;
  }

  // Writes the blocks of a group, as core/formats.cpp reads them, and returns their end.
  std::uint8_t* write_group(std::span<const File> files, std::int64_t row, std::span<const std::uint8_t> codes, float scale, float offset,
                            std::uint8_t* out) const {
    const bool biases = codes_.offsets == Offsets::biases;
    const std::uint16_t d = half(files, row, scale), m = biases ? half(files, row, offset) : std::uint16_t{0};
    const int zero = biases ? 0 : static_cast<int>(offset);
    const auto at = [&](std::size_t i) {
      const int value = codes[i] - zero;
      if (value < target_->low || value > target_->high)
        fail_row(files, row, "code ", codes[i], " with the zero ", zero, " is outside of what ", codes_.bits, " bits can be");
      return value - (target_->format == Format::Q8_0 ? 0 : target_->low);
    };
    for (std::size_t begin = 0; begin < codes.size(); begin += kBlock) {
      std::memcpy(out, &d, sizeof d);
      out += sizeof d;
      if (biases) {
        std::memcpy(out, &m, sizeof m);
        out += sizeof m;
      }
      if (target_->format == Format::Q8_0) {
        for (std::size_t i = 0; i < kBlock; ++i) *out++ = static_cast<std::uint8_t>(at(begin + i));
        continue;
      }
      std::uint8_t stored[kBlock];
      for (std::size_t i = 0; i < kBlock; ++i) stored[i] = static_cast<std::uint8_t>(at(begin + i));
      if (target_->high - target_->low == 31) {  // the fifth bits of all codes come first
        std::uint32_t fifth = 0;
        for (std::size_t i = 0; i < kBlock; ++i) fifth |= static_cast<std::uint32_t>(stored[i] >> 4) << i;
        std::memcpy(out, &fifth, sizeof fifth);
        out += sizeof fifth;
      }
      for (std::size_t i = 0; i < kBlock / 2; ++i) *out++ = static_cast<std::uint8_t>((stored[i] & 15) | stored[i + kBlock / 2] << 4);
    }
    return out;
  }

  Codes codes_;
  std::shared_ptr<Slices> slices_;
  const Target* target_ = nullptr;  // null: F32
};

}  // namespace

TensorInfo made_of(Codes codes, std::shared_ptr<Slices> slices) {
  TensorInfo tensor;
  tensor.name = codes.module + ".weight";
  tensor.shape = {codes.rows, codes.cols};
  tensor.file = codes.scales.file;
  tensor.offset = codes.scales.offset;
  auto made = std::make_shared<const MadeOfCodes>(std::move(codes), std::move(slices));
  tensor.format = made->format();
  tensor.format_name = name(*tensor.format);
  tensor.bytes = static_cast<std::uint64_t>(tensor.shape[0]) * static_cast<std::uint64_t>(row_bytes(*tensor.format, tensor.shape[1]));
  tensor.made = std::move(made);
  return tensor;
}

std::int64_t rows_in_slice(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kCodes = 8 << 20, kMultiple = 64;
  return std::min(rows, std::max(kMultiple, kCodes / cols / kMultiple * kMultiple));
}

void read_bytes(std::span<const File> files, const TensorInfo& tensor, std::uint64_t offset, std::uint64_t count, void* out) {
  files[tensor.file].read(tensor.offset + offset, static_cast<std::size_t>(count), out);
}

void read_numbers(std::span<const File> files, const TensorInfo& tensor, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t bytes = row_bytes(*tensor.format, 1);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(count * bytes));
  read_bytes(files, tensor, static_cast<std::uint64_t>(first * bytes), packed.size(), packed.data());
  unpack(*tensor.format, packed.data(), count, out);
}

}  // namespace pumice::files::schemes
